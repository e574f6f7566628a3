import { expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../../../test/suite/temporary-folder.ts";
import { withTrace, workloadsOf } from "./inputs.ts";
import { WORKLOADS } from "./workload.ts";

const scratch = temporaryFolder("lab");
const { moonlight } = WORKLOADS;

function file(name: string, lines: readonly object[]): string {
  const path = join(scratch, name);
  writeFileSync(path, lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
  return path;
}

async function refusal(act: () => Promise<unknown>): Promise<string> {
  try {
    await act();
  } catch (error) {
    return String(error);
  }
  return "taken";
}

test("trace: a session's turns are one response, and groups come by their names", async () => {
  const path = join(import.meta.dir, "..", "..", "..", "examples", "traces", "misguided.jsonl");
  const { lengths, shape } = await withTrace(moonlight, path);
  expect([lengths?.flat().length, shape.groups, shape.groupSize]).toEqual([96, 32, 3]);
  const turns = file("turns.jsonl", [{ group: 1, prompt_len: 7, out_lens: [5, 9] }]);
  const one = await withTrace(moonlight, turns);
  expect([one.lengths, one.promptTokens]).toEqual([[[14]], 7]);
});

test("trace: Mooncake's requests with the same blocks are one group's", async () => {
  const of = (hash_ids: number[]) => ({ input_length: 5, output_length: 9, hash_ids });
  const path = file("mooncake.jsonl", [of([1]), of([1]), of([2])]);
  const { lengths, promptTokens } = await withTrace(moonlight, path);
  expect([lengths, promptTokens]).toEqual([[[9, 9], [9]], 5]);
});

test("trace: recorded responses give their lengths", async () => {
  const lines = [5, 9].map((length, index) => {
    return { group: "g", index, token_ids: Array.from({ length }, () => 1) };
  });
  const { lengths } = await withTrace(moonlight, file("responses.jsonl", lines));
  expect(lengths).toEqual([[5, 9]]);
});

test("workloads: a module exports one; names, traces and sizes that are wrong are refused by name", async () => {
  const module = join(import.meta.dir, "workload.ts");
  const own = join(scratch, "own.ts");
  const text = `import { WORKLOADS } from ${JSON.stringify(module)};
export const workload = { ...WORKLOADS.moonlight, instances: 3 };`;
  writeFileSync(own, text);
  const [made, named] = await workloadsOf(`${own},kimi-k2`);
  expect([made?.instances, made?.name, named?.name]).toEqual([3, own, "kimi-k2"]);
  expect(await refusal(() => workloadsOf("nowhere"))).toContain("--workload");
  const huge = join(scratch, "huge.ts");
  writeFileSync(huge, text.replace("instances: 3", "promptTokens: 10_000_000"));
  expect(await refusal(() => workloadsOf(huge))).toContain("one instance has room for");
  const wrong = file("wrong.jsonl", [{ group: 1, prompt_len: 5, out_lens: [] }]);
  expect(await refusal(() => withTrace(moonlight, wrong))).toContain("out_lens");
});
