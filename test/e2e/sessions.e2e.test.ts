// Conversations of several turns on real embedded engines: what a session keeps changes no token, and a later turn
// computes what is new in it.

import { expect, setDefaultTimeout } from "bun:test";
import { ToolProcess } from "../faults/process.ts";
import { engineTest } from "../suite/engine-test.ts";

setDefaultTimeout(180_000);

const SIBLINGS = 3;
const TURNS = 3;
const FIRST = Array.from({ length: 40 }, (_, i) => 5 + i);
const NEWS = [300, 301, 302, 303];

interface Answer {
  readonly choices: { token_ids: number[] }[];
  readonly usage: { prompt_tokens: number; prompt_tokens_details: { cached_tokens: number } };
}

/** Texts of all siblings after the last turn, and the parts of the later turns' prompts that were kept. */
async function converse({ http }: ToolProcess, hasSessions: boolean) {
  const kept: number[] = [];
  const texts = await Promise.all(
    Array.from({ length: SIBLINGS }, async (_, i) => {
      const text = [...FIRST];
      for (let turn = 0; turn < TURNS; turn += 1) {
        if (turn > 0) text.push(...NEWS);
        const sampling = { max_tokens: 16, temperature: 1, seed: 1000 * turn + i };
        const headers: Record<string, string> = hasSessions ? { "x-session-id": `s-${i}` } : {};
        const body = { token_ids: text, sampling_params: sampling };
        const answer = await http.post("/inference/v1/generate", body, headers);
        const { choices, usage } = (await answer.json()) as Answer;
        const { prompt_tokens: prompt, prompt_tokens_details: details } = usage;
        if (turn > 0) kept.push(details.cached_tokens / prompt);
        text.push(...(choices[0]?.token_ids ?? []));
      }
      return text;
    }),
  );
  return { texts, kept };
}

engineTest(
  "sessions: the same texts bit for bit, and prompts of later turns are not computed again",
  async () => {
    const server = await ToolProcess.serving("--llama", "2", "--deterministic");
    const without = await converse(server, false);
    const within = await converse(server, true);
    await server.kill();
    expect(within.texts).toEqual(without.texts);
    expect(within.kept).toHaveLength(SIBLINGS * (TURNS - 1));
    for (const part of within.kept) expect(part).toBeGreaterThan(0.5);
  },
);
