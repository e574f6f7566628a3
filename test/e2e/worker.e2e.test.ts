// A worker as a process of its own: a rollout over it gives the tokens of the engine in this process.

import { expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { groupId, weightEpoch, workerId } from "../../src/core/base/ids.ts";
import type { Group, GroupSpec } from "../../src/core/request/buffer.ts";
import type { RequestSpec } from "../../src/core/request/request.ts";
import { Iteration } from "../../src/core/rollout/iteration.ts";
import type { KvBlob, Worker, WorkerEvent } from "../../src/core/rollout/worker.ts";
import { loadCore } from "../../src/core/wasm/load.ts";
import { openLlamaModel } from "../../src/engines/llama/open.ts";
import { LINK_LIMITS } from "../../src/engines/remote/limits.ts";
import { openLinkWorker } from "../../src/engines/remote/worker.ts";
import { EmbeddedKvPool } from "../../src/host/embedded-pool.ts";
import { BUNDLED_MODEL } from "../../src/host/installation.ts";
import { wallClock } from "../../src/host/system.ts";
import { until } from "../faults/http-client.ts";
import { ToolProcess } from "../faults/process.ts";
import { engineTest } from "../suite/engine-test.ts";
import { samplingOf } from "../suite/request-spec.ts";
import { newSpec, runOf } from "../suite/simulated-runs.ts";
import { foretoken, MAIN } from "./tool.ts";

setDefaultTimeout(180_000);

const EPOCH = weightEpoch(0);
const TOKEN = "a long and secret token";
/** For a response whose KV is larger than a frame: 2 KiB a token. */
const LONG = { kvTokens: 1024, contextTokens: 1024 };
const limits = { openMsMax: 120_000 };
const CAPACITY = { slots: 4, kvTokens: 1024, contextTokens: 256 };

function groupsOf(encode: (text: string) => Int32Array): GroupSpec[] {
  return ["countdown 3 7 8 to 29", "collatz 648"].map((text, i) => ({
    groupId: groupId(`g${i}`),
    prompt: encode(`<|user|>${text}<|assistant|>`),
    size: 4,
    sampling: samplingOf({ seed: 11, tokensMax: 64, stopTokenIds: [1359] }),
  }));
}

async function responses(workers: readonly Worker[], groups: readonly GroupSpec[]) {
  const done = new Map<string, { tokens: number[]; logprobs: number[] }>();
  const report = await new Iteration({
    groups,
    workers,
    policy: "seer",
    draft: "grouped",
    chunkTokens: 16,
    epoch: EPOCH,
    deterministic: true,
    pool: new EmbeddedKvPool({ clock: wallClock, memoryBytesMax: 2 ** 24, disk: null }),
    clock: wallClock,
    core: loadCore(),
    onFailed: () => {},
    onGroup: ({ requests }: Group) => {
      for (const { spec, response } of requests) {
        done.set(`${spec.groupId}/${spec.sampleIndex}`, {
          tokens: [...response.tokens()],
          logprobs: [...response.logprobs()],
        });
      }
    },
  }).run();
  return { done, report };
}

engineTest(
  "worker: a rollout over a worker process equals one over the engine in this process, bit for bit",
  async () => {
    const host = await ToolProcess.listening(
      ...["worker", "--listen", "127.0.0.1:0", "--deterministic", "--worker-token", TOKEN],
      ...["--slots", "4", "--kv-tokens", "1024", "--max-model-len", "256"],
    );
    const { url } = host;
    const model = await openLlamaModel({ path: BUNDLED_MODEL, deterministic: true });
    const groups = groupsOf((text) => model.text.encode(text, { addSpecial: false }));
    const options = { workerId: workerId(0), url, clock: wallClock, limits };
    await expect(openLinkWorker({ ...options, token: "another" })).rejects.toMatchObject({
      code: "unauthorized",
    });
    const worker = await openLinkWorker({ ...options, token: TOKEN });
    expect(worker.weights).toMatch(/^q8_0-[0-9a-f]{16}$/);
    expect(worker).toMatchObject({ vocabularySize: model.vocabularySize, capacity: CAPACITY });
    const linked = await responses([worker], groups);
    await worker.close();
    const local = await model.openWorkers({ workers: 1, epoch: EPOCH, ...CAPACITY });
    const embedded = await responses(local, groups);
    expect(linked.done).toEqual(embedded.done);
    expect(linked.done.size).toBe(8);
    expect(linked.report.lost_tokens + linked.report.duplicated_tokens).toBe(0);
    for (const one of local) await one.close();
    model.close();
    host.signal("SIGTERM");
    expect(await host.exited).toBe(0);
  },
);

/** Runs one chunk; returns its tokens, and the KV if it is to be exported. */
async function chunk(
  worker: Worker,
  command: { request: RequestSpec; output: readonly number[]; tokens: number; kv: KvBlob | null },
): Promise<{ tokens: number[]; kv: KvBlob | null; loads: number }> {
  const { request, output, tokens: chunkTokens, kv } = command;
  const events: WorkerEvent[] = [];
  worker.listen((_, some) => events.push(...some));
  const draft = null;
  const common = { chunkTokens, priority: "low", kv, draft } as const;
  worker.send([{ kind: "run", request, output: Int32Array.from(output), ...common }]);
  const isThere = (kind: WorkerEvent["kind"]) => events.some((event) => event.kind === kind);
  await until(() => isThere("chunk_done"), "the chunk");
  worker.send([{ kind: "export", requestId: request.requestId }]);
  await until(() => isThere("exported"), "the KV");
  const made = events.flatMap((event) => (event.kind === "tokens" ? [...event.tokens] : []));
  const exported = events.find((event) => event.kind === "exported");
  const stats = events.findLast((event) => event.kind === "stats");
  return { tokens: made, kv: exported?.kv ?? null, loads: stats?.stats.kvLoads ?? 0 };
}

engineTest(
  "worker: KV larger than a frame goes from one worker process to another, and the response goes on",
  async () => {
    const flags = ["--slots", "2", "--kv-tokens", "1024", "--max-model-len", "1024"];
    const hosts = await Promise.all(
      [0, 1].map(() =>
        ToolProcess.listening("worker", "--listen", "127.0.0.1:0", "--deterministic", ...flags),
      ),
    );
    const [from, to] = await Promise.all(
      hosts.map(({ url }, i) =>
        openLinkWorker({ workerId: workerId(i), url, clock: wallClock, limits }),
      ),
    );
    const model = await openLlamaModel({ path: BUNDLED_MODEL, deterministic: true });
    const [local] = await model.openWorkers({ workers: 1, epoch: EPOCH, ...CAPACITY, ...LONG });
    if (from === undefined || to === undefined || local === undefined) throw new Error("no worker");
    const prompt = model.text.encode("<|user|>collatz 648<|assistant|>", { addSpecial: false });
    const spec = newSpec(1, { seed: 11, tokensMax: 640 });
    const request = { ...spec, prompt };
    const first = await chunk(from, { request, output: [], tokens: 530, kv: null });
    expect(first.kv?.bytes.byteLength).toBeGreaterThan(LINK_LIMITS.kvPartBytes);
    const kv = first.kv;
    const next = await chunk(to, { request, output: first.tokens, tokens: 20, kv });
    expect(next.loads).toBe(1);
    const whole = await chunk(local, { request, output: [], tokens: 550, kv: null });
    expect([...first.tokens, ...next.tokens]).toEqual(whole.tokens);
    for (const worker of [from, to, local]) await worker.close();
    model.close();
    for (const host of hosts) host.signal("SIGTERM");
    expect(await Promise.all(hosts.map(({ exited }) => exited))).toEqual([0, 0]);
  },
);

test("worker: an invalid address is refused with its flag", async () => {
  const { status, stderr } = await foretoken("worker", "--listen", "7448");
  expect(status).toBe(2);
  expect(stderr).toContain('--listen is "7448"; it is HOST:PORT');
});

engineTest(
  "worker: a process whose engine dies starts it again, each time, and serves the next session",
  async () => {
    const preload = ["--preload", join(import.meta.dir, "ending-threads.ts"), MAIN];
    const program = [process.execPath, ...preload];
    const host = new ToolProcess(["worker", "--listen", "127.0.0.1:0"], { program });
    const url = await host.listens();
    const spec = newSpec(1);
    for (let life = 0; life < 3; life += 1) {
      const worker = await openLinkWorker({
        ...{ workerId: workerId(0), url, clock: wallClock, limits },
      });
      const events: WorkerEvent[] = [];
      worker.listen((_, some) => events.push(...some));
      worker.send([runOf(spec, { chunkTokens: 4 })]);
      const isDone = () => events.some(({ kind }) => kind === "chunk_done");
      await until(isDone, "the chunk");
      host.signal("SIGUSR2");
      await until(() => events.some(({ kind }) => kind === "failed"), "the failure");
      expect(host.hasEnded).toBe(false);
      await worker.close();
    }
    host.signal("SIGTERM");
    expect(await host.exited).toBe(0);
    const failures = () => host.text.match(/ worker_failed /g)?.length ?? 0;
    await until(
      () => failures() === 3,
      () => host.text,
    );
    expect(host.text).toContain("engine_restarts");
    expect(host.text).toContain("engine_ready");
  },
);
