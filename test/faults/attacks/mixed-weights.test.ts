// Linked worker processes with different weights under one sidecar: one on q8_0 beside one on f16, and one that
// was started anew with the file that it began with. Nothing of theirs is ever served as if it were the same.

import { afterEach, expect, setDefaultTimeout, test } from "bun:test";
import { copyFileSync, mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { freePort } from "../../../src/tools/up/ports.ts";
import {
  generate,
  type Proc,
  startSidecar,
  startWorker,
  untilTrue,
  type WorkerEntry,
  workersOf,
} from "../../e2e/fleet.ts";
import { engineMissing, scratch } from "../../e2e/tool.ts";
import { checkpoint, writeSafetensors } from "../../llama/checkpoint.ts";
import { MODEL_PATH, OTHER_MODEL_PATH } from "../../llama/engine-fixture.ts";

const missing = engineMissing();
if (missing !== null) console.warn(`skipped, the embedded engine cannot run here: ${missing}`);
const engineTest = test.skipIf(missing !== null);

setDefaultTimeout(180_000);

const TOKENS = 64;
const folder = scratch();
const procs: Proc[] = [];

afterEach(async () => {
  await Promise.all(procs.splice(0).map((proc) => proc.end()));
  rmSync(folder, { recursive: true, force: true });
});

interface Entry extends WorkerEntry {
  readonly weights: string | null;
}

const entries = async (url: string) => (await workersOf(url)) as readonly Entry[];
const statesOf = async (url: string) => (await entries(url)).map(({ state }) => state).join();

async function worker(port: number, model: string): Promise<Proc> {
  const proc = await startWorker(port, "--model", model);
  procs.push(proc);
  return proc;
}

async function sidecar(ports: readonly number[], ...args: string[]) {
  const { proc, url } = await startSidecar(ports, "--chunk-tokens", "8", ...args);
  procs.push(proc);
  return { proc, url };
}

async function update(url: string, path: string): Promise<number> {
  const body = JSON.stringify({ update_info: { weights_path: path } });
  const headers = { "content-type": "application/json" };
  const target = new URL("/update_weights", url);
  return (await fetch(target, { method: "POST", headers, body })).status;
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
    const ports = [freePort("127.0.0.1"), freePort("127.0.0.1")];
    await Promise.all([
      worker(ports[0] as number, OTHER_MODEL_PATH),
      worker(ports[1] as number, MODEL_PATH),
    ]);
    const { proc, url } = await sidecar(ports);
    const [f16, q8] = await entries(url);
    expect([f16?.state, q8?.state]).toEqual(["ready", "fenced"]);
    expect(f16?.weights).toMatch(/^f16-[0-9a-f]{16}$/);
    expect(q8?.weights).toMatch(/^q8_0-[0-9a-f]{16}$/);
    expect(q8?.reason).toContain(
      `has weights ${q8?.weights}, ws://127.0.0.1:${ports[0]} has ${f16?.weights}`,
    );
    const line = proc.line(/state=fenced/)?.text ?? "";
    expect(line).toContain(q8?.weights ?? "?");
    expect(line).toContain(`ws://127.0.0.1:${ports[1]}`);
    const health = await fetch(new URL("/health", url));
    expect([health.status, await health.text()]).toEqual([200, expect.stringContaining("f16-")]);
    await Promise.all([0, 1, 2, 3].map((n) => generate(url, n, TOKENS)));
    // A GGUF file brings its own precision: whoever takes it has the same as the other.
    expect(await update(url, OTHER_MODEL_PATH)).toBe(200);
    await untilTrue(async () => (await statesOf(url)) === "ready,ready", "both to serve");
  },
);

engineTest(
  "a worker that was started anew with its first file serves only with the update",
  async () => {
    const ports = [freePort("127.0.0.1"), freePort("127.0.0.1")];
    const [, second] = await Promise.all(ports.map((port) => worker(port, OTHER_MODEL_PATH)));
    const { url } = await sidecar(ports);
    const path = writeStep("step-1.safetensors", 0.01);
    const initial = (await entries(url))[1]?.weights;
    expect(await update(url, path)).toBe(200);
    const current = (await entries(url))[0]?.weights ?? null;
    expect(current).not.toBe(initial);
    const expected = await generate(url, 1, TOKENS);

    await second?.end();
    await worker(ports[1] as number, OTHER_MODEL_PATH);
    await untilTrue(async () => (await statesOf(url)) === "ready,ready", "the worker's return");
    expect((await entries(url)).map(({ weights }) => weights)).toEqual([current, current]);
    const all = await Promise.all(Array.from({ length: 8 }, () => generate(url, 1, TOKENS)));
    for (const tokens of all) expect(tokens).toEqual(expected);

    // The file holds something else by now: what the worker would be given is not what the other has.
    copyFileSync(writeStep("step-2.safetensors", 0.02), path);
    await procs.at(-1)?.end();
    await worker(ports[1] as number, OTHER_MODEL_PATH);
    await untilTrue(async () => (await statesOf(url)) === "ready,fenced", "the fence");
    expect((await entries(url))[1]?.reason).toContain(`has ${current}`);
    expect(await generate(url, 1, TOKENS)).toEqual(expected);
  },
);
