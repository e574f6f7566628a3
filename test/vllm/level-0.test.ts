// Two real vLLM servers, as `foretoken up` starts them, with nothing of ours inside: one rollout after the other over
// the same two, from their start to Ctrl-C. The order matters: the weights change once.

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { rmSync } from "node:fs";
import { promptLogprobTests, TOOL_FLAGS, toolTests } from "./answers.ts";
import { type Bed, TEST_MS_MAX } from "./bed.ts";
import { CHAT_FLAGS, chatTests } from "./chats.ts";
import { cacheTests, controlTests, weightTests } from "./control.ts";
import { drawTests } from "./draws.ts";
import {
  CHUNK_TOKENS,
  examined,
  Fleet,
  livingIn,
  memoryMib,
  named,
  promptIds,
  scaledModel,
  vllmMissing,
} from "./fleet.ts";

setDefaultTimeout(TEST_MS_MAX);

const GROUPS = 16;
/** The bundled model's, model/hf/config.json. */
const EOS = 1359;
/** The logits of the second weights are so much smaller: it draws as at a higher temperature, which few tokens show. */
const SCALE = 0.6;

const missing = vllmMissing();
if (missing !== null) console.log(`level 0: skipped, ${missing}`);

describe.skipIf(missing !== null)("two vLLM servers behind the sidecar", () => {
  const startMs = performance.now();
  let bed: Bed | null = null;
  let fleet: Fleet | null = null;
  let folder = "";
  let memoryMax = 0;
  const ready = (): Bed => {
    if (bed === null) throw new Error("the servers did not start");
    return bed;
  };
  const measure = () => {
    const groups = fleet?.servers.map(({ pid }) => pid) ?? [];
    memoryMax = Math.max(memoryMax, memoryMib(groups));
  };

  beforeAll(async () => {
    folder = scaledModel(SCALE);
    const args = ["--chunk-tokens", String(CHUNK_TOKENS), "--max-model-len", "2100"];
    fleet = await Fleet.up([...args, "--", ...TOOL_FLAGS, ...CHAT_FLAGS]);
    const prompts = await promptIds(fleet, GROUPS);
    bed = { fleet, prompts, eos: EOS };
    console.log(`healthy after ${seconds(startMs)} s`);
  });

  afterAll(async () => {
    await fleet?.stop();
    rmSync(folder, { recursive: true, force: true });
    console.log(`level 0: ${seconds(startMs)} s; both servers together ${memoryMax} MiB (PSS)`);
  });

  test("doctor: finds nothing wrong with a server that `up` has started", async () => {
    const { status, findings } = await examined(ready().fleet.plain(0).url);
    expect(named(findings, "fail")).toEqual([]);
    // What a machine without a GPU cannot do.
    expect(named(findings, "warn")).toEqual(["TRL's client"]);
    expect(status).toBe(0);
  });

  chatTests(ready);
  toolTests(ready);
  promptLogprobTests(ready);
  drawTests(ready);
  controlTests(ready);
  weightTests(ready, () => folder);
  cacheTests(ready, () => folder);

  test("Ctrl-C: the sidecar and both servers end, and leave no process behind", async () => {
    measure();
    const { servers } = ready().fleet;
    expect(servers.flatMap(({ pid }) => livingIn(pid)).length).toBeGreaterThan(2);
    expect(await ready().fleet.stop()).toBe(0);
    expect(servers.flatMap(({ pid }) => livingIn(pid))).toEqual([]);
    for (const { url } of servers) await expect(fetch(`${url}/health`)).rejects.toThrow();
  });
});

function seconds(sinceMs: number): number {
  return Math.round((performance.now() - sinceMs) / 1000);
}
