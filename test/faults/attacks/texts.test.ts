// Attacks the tokenizer with texts: megabytes of words, of blanks, of one character and of emoji, as prompt, chat, list
// and rollout, many at a time, with clients that go away. Streams and /health go on meanwhile, and each text is answered
// or refused in time, over both kinds of tokenizer.

import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { engineMissing, ROOT } from "../../e2e/tool.ts";
import { servedTool } from "../served-tool.ts";
import { rounds } from "./scale.ts";

setDefaultTimeout(180_000);

const MILLION = 1_000_000;

const TEXTS: Readonly<Record<string, (characters: number) => string>> = {
  words: (characters) => "sort 9 27 4 and say so ".repeat(characters / 23),
  blanks: (characters) => " ".repeat(characters),
  one: (characters) => "a".repeat(characters),
  emoji: (characters) => "🦊".repeat(characters / 2),
  brackets: (characters) => "[{".repeat(characters / 2),
};

const HF = ["--tokenizer", join(ROOT, "test", "fixtures", "foretoken-3m-hf")];

describe.skipIf(engineMissing() !== null).each([
  ["embedded vocabulary", []],
  ["Hugging Face files", HF],
] as const)("texts over the %s", (_, args) => {
  const victim = servedTool(...args);

  const statusOf = async (path: string, body: unknown) =>
    (await victim().http.ask(path, body)).status;

  const bodies = (content: string): readonly [string, object][] => [
    ["/v1/completions", { prompt: content, max_tokens: 1 }],
    ["/v1/completions", { prompt: [content, "b"], max_tokens: 1 }],
    ["/v1/chat/completions", { messages: [{ role: "user", content }], max_tokens: 1 }],
    ["/v1/chat/completions/render", { messages: [{ role: "user", content }] }],
    ["/generate", { text: content, sampling_params: { max_new_tokens: 1 } }],
    [
      "/v1/rollouts",
      { groups: [{ id: "a", prompt: content }], sampling_params: { max_tokens: 1 } },
    ],
  ];

  test.each(Object.keys(TEXTS))("%s: what has no room is refused at once", async (name) => {
    const content = TEXTS[name]?.(MILLION) ?? "";
    await victim().survives(async () => {
      for (const [path, body] of bodies(content)) {
        expect([path, await statusOf(path, body)]).toEqual([path, 400]);
      }
    });
  });

  test("what takes too long is a 504, and the next text is encoded", async () => {
    // The thread for shorter texts is open.
    expect(await statusOf("/tokenize", { prompt: TEXTS.words?.(20_000) })).toBe(200);
    await victim().survives(async () => {
      const slow = victim().http.post("/tokenize", { prompt: TEXTS.blanks?.(4 * MILLION) });
      const medium = await victim().http.post("/tokenize", { prompt: TEXTS.words?.(20_000) });
      expect(medium.status).toBe(200);
      expect([200, 504]).toContain((await slow).status);
    });
    expect(await statusOf("/tokenize", { prompt: TEXTS.words?.(100_000) })).toBe(200);
  });

  test("clients that go away leave nothing in the queue", async () => {
    await victim().survives(async () => {
      const prompt = TEXTS.blanks?.(4 * MILLION);
      const body = JSON.stringify({ prompt });
      const gone = Array.from({ length: rounds(3, 20) }, async () => {
        const signal = AbortSignal.timeout(300);
        await fetch(new URL("/tokenize", victim().http.url), {
          method: "POST",
          body,
          signal,
        }).catch(() => {});
      });
      await Promise.all(gone);
      expect(await statusOf("/tokenize", { prompt: TEXTS.words?.(100_000) })).toBe(200);
    });
  });

  test("a stream comes whole while texts are encoded", async () => {
    const stream = await victim().http.post("/v1/completions", {
      prompt: "sort 9 27 4",
      max_tokens: 400,
      ignore_eos: true,
      stream: true,
    });
    const encoding = statusOf("/tokenize", { prompt: TEXTS.blanks?.(MILLION) });
    expect(await stream.text()).toEndWith("data: [DONE]\n\n");
    expect([200, 504]).toContain(await encoding);
  });
});
