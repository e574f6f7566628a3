// Conversations of several turns on real embedded engines: what a session keeps changes no token, and a later turn
// computes what is new in it.

import { expect, setDefaultTimeout } from "bun:test";
import { ToolProcess } from "../faults/process.ts";
import { engineTest } from "../suite/engine-test.ts";
import type { ExportedSession } from "../suite/exported-session.ts";
import { temporaryFolder } from "../suite/temporary-folder.ts";

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

const LONG = 30;
const BY_NUMBER = { return_tokens_as_token_ids: true };

engineTest(
  "sessions: a trajectory of 30 turns scores as it was drawn, and outlives the server with a journal",
  async () => {
    const journal = ["--journal", temporaryFolder("trajectories")];
    let server = await ToolProcess.serving(...journal);
    const text = [...FIRST.slice(0, 10)];
    const turn = async () => {
      const sampling = { max_tokens: 8, temperature: 1, seed: text.length };
      const body = { token_ids: text, sampling_params: sampling };
      const named = { authorization: "Bearer SESSION:long;GROUP:g" };
      const answer = await server.http.post("/inference/v1/generate", body, named);
      const { choices } = (await answer.json()) as Answer;
      text.push(...(choices[0]?.token_ids ?? []), ...NEWS);
    };
    for (let i = 0; i < LONG; i += 1) await turn();
    const exported = async () => (await server.http.json("/v1/sessions/long")) as ExportedSession;
    const before = await exported();
    expect(before).toMatchObject({ is_complete: true });
    expect(before.turns).toHaveLength(LONG);
    expect(before.segments).toHaveLength(1);
    const [{ token_ids: ids, loss_mask: mask, logprobs } = EMPTY] = before.segments;
    expect(ids).toEqual(text.slice(0, -NEWS.length));
    let scored = 0;
    for (const [at, drawn] of mask.entries()) {
      if (drawn === 0) continue;
      const body = { prompt: ids.slice(0, at), max_tokens: 1, logprobs: 20, ...BY_NUMBER };
      const answer = await server.http.post("/v1/completions", body);
      const { choices } = (await answer.json()) as Scored;
      const score = choices[0]?.logprobs.top_logprobs[0]?.[`token_id:${ids[at]}`];
      // A token that was drawn although 20 others are likelier has no score there.
      if (score === undefined) continue;
      expect(Math.abs(score - (logprobs[at] ?? Number.NaN))).toBeLessThan(1e-4);
      scored += 1;
    }
    expect(scored).toBeGreaterThan(0.8 * mask.filter((bit) => bit === 1).length);
    server.signal("SIGTERM");
    await server.exited;
    server = await ToolProcess.serving(...journal);
    expect((await exported()).segments).toEqual(before.segments);
    await turn();
    expect(await exported()).toMatchObject({ is_complete: true, turns: { length: LONG + 1 } });
    server.signal("SIGKILL");
    await server.exited;
    server = await ToolProcess.serving(...journal);
    expect((await exported()).incomplete_because).toContainEqual(
      expect.stringContaining("the server did not stop in order"),
    );
    await server.kill();
  },
);

const EMPTY: ExportedSession["segments"][number] = {
  parent: null,
  token_ids: [],
  loss_mask: [],
  logprobs: [],
  spans: [],
};

interface Scored {
  readonly choices: { logprobs: { top_logprobs: Record<string, number>[] } }[];
}
