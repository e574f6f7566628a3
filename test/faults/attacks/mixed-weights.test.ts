// Linked worker processes with different weights under one sidecar: one on q8_0 beside one on f16, and one that
// was started anew with the file that it began with. Nothing of theirs is ever served as if it were the same.

import { afterEach, expect, setDefaultTimeout, test } from "bun:test";
import { copyFileSync, mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { generate, startSidecar, startWorker } from "../../e2e/fleet.ts";
import { engineMissing, scratch } from "../../e2e/tool.ts";
import { checkpoint, writeSafetensors } from "../../llama/checkpoint.ts";
import { MODEL_PATH, OTHER_MODEL_PATH } from "../../llama/engine-fixture.ts";
import { until } from "../http-client.ts";
import type { ToolProcess } from "../process.ts";

const missing = engineMissing();
if (missing !== null) console.warn(`skipped, the embedded engine cannot run here: ${missing}`);
const engineTest = test.skipIf(missing !== null);

setDefaultTimeout(180_000);

const TOKENS = 64;
const folder = scratch();
const processes: ToolProcess[] = [];

afterEach(async () => {
  await Promise.all(processes.splice(0).map((one) => one.kill()));
  rmSync(folder, { recursive: true, force: true });
});

const untilStates = ({ http }: ToolProcess, states: string) =>
  until(async () => (await http.workers()).map(({ state }) => state).join() === states, states);

async function worker(model: string, at: string | null = null): Promise<ToolProcess> {
  const one = await startWorker(at, "--model", model);
  processes.push(one);
  return one;
}

async function sidecar(workers: readonly ToolProcess[]): Promise<ToolProcess> {
  const one = await startSidecar(workers, "--chunk-tokens", "8");
  processes.push(one);
  return one;
}

async function update({ http }: ToolProcess, path: string): Promise<number> {
  return (await http.ask("/update_weights", { update_info: { weights_path: path } })).status;
}

/** Weights that no file has yet. */
function writeStep(name: string, value: number): string {
  const path = join(folder, name);
  mkdirSync(folder, { recursive: true });
  const tensors = checkpoint();
  tensors.get("model.layers.1.mlp.down_proj.weight")?.values.fill(value);
  writeSafetensors(path, tensors, "F16");
  return path;
}

engineTest(
  "a worker on q8_0 beside one on f16 is refused, and named with its weights",
  async () => {
    const workers = await Promise.all([worker(OTHER_MODEL_PATH), worker(MODEL_PATH)]);
    const [first = "", second = ""] = workers.map(({ url }) => url);
    const server = await sidecar(workers);
    await untilStates(server, "ready,fenced");
    const [f16, q8] = await server.http.workers();
    expect(f16?.weights).toMatch(/^f16-[0-9a-f]{16}$/);
    expect(q8?.weights).toMatch(/^q8_0-[0-9a-f]{16}$/);
    const reason = `has weights ${q8?.weights}, ${first} has ${f16?.weights}`;
    expect(q8?.reason).toContain(reason);
    const line = server.line(/state=fenced/) ?? "";
    expect(line).toContain(q8?.weights ?? "?");
    expect(line).toContain(second);
    const health = await server.http.call("/health");
    expect([health.status, await health.text()]).toEqual([200, expect.stringContaining("f16-")]);
    await Promise.all([0, 1, 2, 3].map((n) => generate(server, n, TOKENS)));
    // A GGUF file brings its own precision: whoever takes it has the same as the other.
    expect(await update(server, OTHER_MODEL_PATH)).toBe(200);
    await untilStates(server, "ready,ready");
  },
);

engineTest(
  "a worker that was started anew with its first file serves only with the update",
  async () => {
    const [first, second] = await Promise.all([worker(OTHER_MODEL_PATH), worker(OTHER_MODEL_PATH)]);
    if (first === undefined || second === undefined) throw new Error("two workers");
    const server = await sidecar([first, second]);
    const weights = async () => (await server.http.workers()).map((one) => one.weights);
    const path = writeStep("step-1.safetensors", 0.01);
    const initial = (await weights())[1];
    expect(await update(server, path)).toBe(200);
    const current = (await weights())[0] ?? null;
    expect(current).not.toBe(initial ?? null);
    const expected = await generate(server, 1, TOKENS);

    await second.kill();
    const again = await worker(OTHER_MODEL_PATH, second.url);
    await untilStates(server, "ready,ready");
    expect(await weights()).toEqual([current, current]);
    const all = await Promise.all(Array.from({ length: 8 }, () => generate(server, 1, TOKENS)));
    for (const tokens of all) expect(tokens).toEqual(expected);

    // The file holds something else by now: what the worker would be given is not what the other has.
    copyFileSync(writeStep("step-2.safetensors", 0.02), path);
    await again.kill();
    await worker(OTHER_MODEL_PATH, second.url);
    await untilStates(server, "ready,fenced");
    expect((await server.http.workers())[1]?.reason).toContain(`has ${current}`);
    expect(await generate(server, 1, TOKENS)).toEqual(expected);
  },
);
