// The engine by the contract of workers, and what it does beside that: stop tokens, errors of its server, refusals.

import { expect, onTestFinished, test } from "bun:test";
import { weightEpoch, workerId } from "../../src/core/base/ids.ts";
import { NO_SHAPING } from "../../src/core/request/request.ts";
import type { WorkerEvent } from "../../src/core/rollout/worker.ts";
import { startStandIn } from "../../test/faults/stand-in/example-stand-in.ts";
import { ManualClock } from "../../test/suite/manual-clock.ts";
import { runCommand, samplingOf, specOf } from "../../test/suite/request-spec.ts";
import { workerSuite } from "../../test/suite/worker-suite.ts";
import { EXAMPLE } from "./kind.ts";
import { openExampleWorker } from "./worker.ts";

const ACCESS = { token: null, clock: new ManualClock(), notice: () => {} };
const OPTIONS = { workerId: workerId(0), epoch: weightEpoch(0), reach: () => {} };
const LIMITS = { attemptsMax: 3, retryMs: 1, stepMsMax: 10_000, pollMs: 5, pollMsMax: 1_000 };

async function opened() {
  const server = startStandIn();
  const options = { ...ACCESS, ...OPTIONS, url: server.url, limits: LIMITS };
  const worker = await openExampleWorker(options);
  const close = () => Promise.all([worker.close(), server.stop()]).then(() => {});
  return { worker, server, close };
}

workerSuite("example", async () => {
  const { worker, server, close } = await opened();
  // Operations that must be answered with 404; those that are not listed, with 200.
  return { worker, lacks: ["load", "sleep", "wake", "canary"], fail: server.stop, close };
});

test("example: steps have the text so far and seeds of their own; stop tokens and errors end one request", async () => {
  const { worker, server, close } = await opened();
  onTestFinished(close);
  const heard: WorkerEvent[] = [];
  worker.listen(
    (_, events) => heard.push(...events),
    () => null,
  );
  const run = async (refusals: number[], stopTokenIds: number[] = [], output: number[] = []) => {
    heard.length = 0;
    server.refusals.push(...refusals);
    const sampling = samplingOf({ tokensMax: 40, stopTokenIds });
    const spec = specOf(1, { prompt: Int32Array.of(1), sampling });
    worker.send([runCommand(spec, { output, chunkTokens: 40 })]);
    while (heard.at(-1)?.kind !== "stats") await new Promise((resolve) => setTimeout(resolve, 1));
    const tokens = heard.flatMap((event) => (event.kind === "tokens" ? [...event.tokens] : []));
    const end = heard.find((event) => event.kind === "chunk_done");
    return { tokens, end: end?.refusal?.status ?? end?.finish };
  };
  const whole = await run([]);
  expect([whole.tokens.length, whole.end]).toEqual([40, "length"]);
  const texts = [0, 6, 12, 16, 22, 28, 32, 38].map((at) => [1, ...whole.tokens.slice(0, at)]);
  expect(server.steps.map((step) => step.tokens)).toEqual(texts);
  expect(new Set(server.steps.map(({ seed }) => seed)).size).toBe(8);
  const tokens = whole.tokens.slice(0, 21);
  expect(await run([], tokens.slice(-1))).toEqual({ tokens, end: "stop" });
  expect(await run([422])).toEqual({ tokens: [], end: 422 });
  expect(await run([500, 500, 500])).toEqual({ tokens: [], end: 502 });
  expect(await run([503, 500])).toEqual(whole);
  expect((await run([], [], [7, 7])).tokens.length).toBe(38);
});

test("example: a parameter that the API lacks is refused by its name", async () => {
  const { worker, close } = await opened();
  onTestFinished(close);
  for (const [fields, field] of [
    [{ adapter: "a" }, "model"],
    [{ topLogprobs: 1 }, "logprobs"],
    [{ engineFields: { guided: 1 } }, "guided"],
    [{ shaping: { ...NO_SHAPING, tokensMin: 1 } }, "min_tokens"],
    [{ shaping: { ...NO_SHAPING, logitBias: [{ token: 1, bias: 1 }] } }, "logit_bias"],
  ] as const) {
    const sampling = { ...samplingOf({ tokensMax: 1 }), ...fields };
    expect(worker.supports(sampling)).toMatchObject({ kind: "refused", field });
  }
});

test("example: its row opens a worker by URL, or says that no server is there", async () => {
  const { url, stop } = startStandIn();
  const open = EXAMPLE.opener(url, ACCESS);
  await (await open(OPTIONS)).close();
  await stop();
  await expect(open(OPTIONS)).rejects.toThrow("connect");
});
