// Responses of an earlier epoch over a killed sidecar: as an engine with the plugin gets them from the next process.

import { expect, setDefaultTimeout } from "bun:test";
import { readFileSync, statSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { groupId, weightEpoch } from "../../src/core/base/ids.ts";
import { ToolProcess } from "../faults/process.ts";
import { exchange, registerOf } from "../suite/draft-client.ts";
import { engineTest } from "../suite/engine-test.ts";
import { temporaryFolder } from "../suite/temporary-folder.ts";

setDefaultTimeout(180_000);

const folder = temporaryFolder("e2e");

const PROMPT = [1, 5, 9];

async function serving(file: string, run: (server: ToolProcess) => Promise<void>) {
  const server = await ToolProcess.serving("--log", "off", "--journal", dirname(file));
  try {
    await run(server);
  } finally {
    await server.kill();
  }
}

async function generate({ http }: ToolProcess, n: number): Promise<number[][]> {
  const choices = await http.choices(PROMPT, { n, max_tokens: 24 });
  return choices.map((choice) => choice.token_ids);
}

async function pastOf(url: URL): Promise<number[][]> {
  const group = groupId("g1");
  const { answers } = await exchange(`ws://${url.host}/v1/draft`, [
    { kind: "hello", protocolVersion: 1 },
    registerOf(group, Int32Array.from(PROMPT)),
    { kind: "fetch_past", epoch: weightEpoch(0), groupId: group, have: 0 },
  ]);
  expect(answers[0]).toMatchObject({ kind: "welcome", hasPast: true });
  const past = answers[2];
  if (past?.kind !== "past") throw new Error("there is an answer");
  return past.responses.map((tokens) => [...tokens]);
}

const sorted = (texts: number[][]) => texts.map((text) => text.join()).toSorted();

engineTest("history: a sidecar that is killed leaves its responses to the next one", async () => {
  const file = join(folder, "history");
  let made: number[][] = [];
  await serving(file, async (server) => {
    made = await generate(server, 3);
    expect(await pastOf(server.http.url)).toEqual([]);
    const wanted = made.reduce((sum, { length }) => sum + 4 * length, 0);
    while (statSync(file).size < wanted) await Bun.sleep(5);
    await server.kill();
  });
  // The record that was being written when the process died.
  const bytes = readFileSync(file);
  writeFileSync(file, Buffer.concat([bytes, bytes.subarray(8, 29)]));
  await serving(file, async (server) => {
    await generate(server, 1);
    expect(sorted(await pastOf(server.http.url))).toEqual(sorted(made));
  });
});
