// `foretoken rollout --worker`: an iteration over servers that run elsewhere, from the same prompt files.

import { expect, setDefaultTimeout, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { linesIn } from "../faults/chaos/response-line.ts";
import { standInResponse } from "../faults/stand-in/tokens.ts";
import { VllmStandIn } from "../faults/stand-in/vllm-stand-in.ts";
import { temporaryFolder } from "../suite/temporary-folder.ts";
import { foretoken, ROOT, start } from "./tool.ts";

setDefaultTimeout(180_000);

const TOKENIZER = join(ROOT, "test", "fixtures", "foretoken-3m-hf");
const folder = temporaryFolder("rollout-workers");
const GROUPS = 6;
const N = 4;
const TOKENS_MAX = 40;

function prompts(): string {
  const path = join(folder, "prompts.jsonl");
  const lines = Array.from({ length: GROUPS }, (_, i) => ({ id: `g${i}`, token_ids: [i, 7, 9] }));
  writeFileSync(path, lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
  return path;
}

test("rollout --worker: every response of two servers, one of which is still loading", async () => {
  const servers = [
    await VllmStandIn.start({ slots: 4 }),
    await VllmStandIn.start({ slots: 4, isLoading: true }),
  ];
  const out = join(folder, "responses.jsonl");
  try {
    const child = start([
      ...["rollout", prompts(), "--group-size", `${N}`, "--max-tokens", `${TOKENS_MAX}`],
      ...["--chunk-tokens", "8", "--tokenizer", TOKENIZER, "--out", out],
      ...servers.flatMap(({ url }) => ["--worker", url]),
    ]);
    let stderr = "";
    for await (const piece of child.stderr) {
      stderr += new TextDecoder().decode(piece);
      if (!stderr.includes("waiting for")) continue;
      for (const server of servers) server.isHealthy = true;
    }
    expect({ status: await child.exited, stderr }).toEqual({
      status: 0,
      stderr: expect.stringContaining("waiting for"),
    });
    const responses = linesIn(readFileSync(out, "utf8"));
    expect(responses).toHaveLength(GROUPS * N);
    const used = new Set(responses.flatMap(({ chunks }) => chunks.map(({ worker }) => worker)));
    expect([...used].toSorted()).toEqual([0, 1]);
    for (const { prompt_token_ids: prompt, index: sample, token_ids: tokens } of responses) {
      const expected = { prompt, sample, tokensMax: TOKENS_MAX, stopTokenIds: [] };
      expect(tokens).toEqual(standInResponse(expected));
    }
  } finally {
    await Promise.all(servers.map((server) => server.stop()));
  }
});

test("rollout --worker: the server makes the prompts of chats, from the file's own bytes", async () => {
  const seen: string[] = [];
  const server = await VllmStandIn.start({
    routes: (path, _body, source) => {
      if (path !== "/v1/chat/completions/render") return null;
      seen.push(source);
      return { status: 200, body: { token_ids: [7, 8, 9], sampling_params: {} } };
    },
  });
  const [path, out] = [join(folder, "chats.jsonl"), join(folder, "responses.jsonl")];
  const chat = '"messages":[{"role":"user","content":"hi"}],"tools":[{"2":1.0,"1":-0.0}]';
  writeFileSync(path, `{"id": "a", ${chat}}\n`);
  try {
    const flags = ["--max-tokens", "8", "--tokenizer", TOKENIZER, "--out", out];
    const ran = await foretoken("rollout", path, ...flags, "--worker", server.url);
    expect(ran).toMatchObject({ status: 0 });
    expect(linesIn(readFileSync(out, "utf8"))[0]?.prompt_token_ids).toEqual([7, 8, 9]);
    expect(seen).toEqual([`{${chat},"max_completion_tokens":1}`]);
  } finally {
    await server.stop();
  }
});
