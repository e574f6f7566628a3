// A rollout in this process, over simulated engines: what ends it before its responses do.

import { expect, spyOn, test } from "bun:test";
import { SimulatedWorker } from "../../test/faults/simulated/worker.ts";
import { samplingOf } from "../../test/suite/request-spec.ts";
import { serveOptions } from "../../test/suite/serve-fixture.ts";
import { temporaryFolder } from "../../test/suite/temporary-folder.ts";
import { AppError } from "../core/base/errors.ts";
import { type WeightsId, weightEpoch, weightsId } from "../core/base/ids.ts";
import type { WorkerSource } from "../fleet/engines.ts";
import { type RolloutJob, runRollout } from "./rollout.ts";
import { openSidecar } from "./sidecar.ts";

const capacity = { slots: 4, kvTokens: 8192, contextTokens: 2048, kvBytesPerToken: 8 };
const LONG = 100;

/** Engines that make a token of each response whenever the event loop comes round, until `over`. */
class Fleet {
  readonly workers: SimulatedWorker[] = [];
  isOver = false;
  opened = 0;

  source(weights: WeightsId | null = null): WorkerSource {
    return {
      name: `engine ${weights ?? this.opened}`,
      keepsWeights: false,
      open: async ({ workerId, epoch }) => {
        this.opened += 1;
        const lengthOf = ({ sampleIndex }: { sampleIndex: number }) => 5 + LONG * sampleIndex;
        const worker = new SimulatedWorker({ workerId, capacity, epoch, lengthOf });
        this.workers.push(worker);
        return Object.assign(worker, { weights });
      },
    };
  }

  async run(): Promise<void> {
    while (!this.isOver) {
      for (const worker of this.workers) if (!worker.isDead) worker.step();
      await new Promise<void>((resolve) => setImmediate(resolve));
    }
  }
}

const absent: WorkerSource = {
  name: "absent",
  keepsWeights: true,
  open: async () => {
    throw new AppError("worker_failed", "it does not answer");
  },
};

const sampling = samplingOf({ seed: 7, tokensMax: 1000 });
const group = (id: string, n: number) => ({
  id,
  n,
  sampling,
  seeded: true,
  prompt: Int32Array.of(1, 2, id.length),
});
const PLAN = {
  id: null,
  priority: 0,
  isDetached: true,
  isStrict: true,
  groups: [group("long", 4), group("short", 1)],
};

type Given = Partial<RolloutJob> & Pick<RolloutJob, "sources">;

/** The run over the fleet's engines, the finished responses by group, and what was said. */
function rolled(fleet: Fleet, given: Given) {
  const handedOut: [group: string, lengths: number[]][] = [];
  const said: string[] = [];
  void fleet.run();
  const report = runRollout({
    ...serveOptions(given),
    plan: async () => PLAN,
    startS: null,
    onGroup: (id, finished) => {
      handedOut.push([id, finished.map(({ response }) => response.length)]);
    },
    onProgress: () => {},
    note: (text) => said.push(text),
    signal: new AbortController().signal,
    ...given,
  }).finally(() => {
    fleet.isOver = true;
  });
  return { report, handedOut, said };
}

const WHOLE = [
  ["short", [5]],
  ["long", [5, 5 + LONG, 5 + 2 * LONG, 5 + 3 * LONG]],
];

test("rollout: every group is handed out once, and the report has its names and its engines", async () => {
  const fleet = new Fleet();
  const { report, handedOut } = rolled(fleet, { sources: [fleet.source(), fleet.source()] });
  const { timeline, workers, ...figures } = await report;
  expect(handedOut).toEqual(WHOLE as typeof handedOut);
  expect(figures).toMatchObject({ finished_requests: 5, interrupted: false, policy: "seer" });
  expect(workers.map(({ worker }) => worker)).toEqual([0, 1]);
  expect(new Set(timeline.responses.map((one) => one.group))).toEqual(new Set(["short", "long"]));
});

test("rollout: an engine that dies is opened again while another is left, and not after the last", async () => {
  const fleet = new Fleet();
  const sources = [fleet.source(), fleet.source()];
  const onGroup = () => fleet.workers[0]?.kill();
  expect((await rolled(fleet, { sources, onGroup }).report).finished_requests).toBe(5);
  const last = new Fleet();
  const kill = () => last.workers[0]?.kill();
  using began = spyOn(globalThis, "setInterval");
  const { report } = rolled(last, { sources: [last.source()], onGroup: kill });
  expect(report).rejects.toThrow("engine 0: killed; no other engine is left");
  await report.catch(() => undefined);
  // A timer that runs on would keep the process from ending.
  const timers = began.mock.results.map(({ value }) => value as NodeJS.Timeout);
  expect(timers.length).toBeGreaterThan(0);
  expect(timers.filter((timer) => timer.hasRef())).toEqual([]);
});

test("rollout: an engine that cannot be opened ends it, at once or after the time to start", async () => {
  const fleet = new Fleet();
  const sources = [fleet.source(), absent];
  const once = rolled(fleet, { sources });
  expect(once.report).rejects.toThrow("absent: it does not answer");
  await once.report.catch(() => undefined);
  const tried = rolled(new Fleet(), { sources: [absent], startS: 0.3 });
  expect(tried.report).rejects.toThrow("absent: it does not answer (after 0.3 s; --start-s)");
  await tried.report.catch(() => undefined);
  expect(tried.said).toEqual(["waiting for absent: it does not answer"]);
  const silent: WorkerSource = { ...absent, open: () => new Promise(() => {}) };
  const { report } = rolled(new Fleet(), { sources: [silent], startS: 0.3 });
  expect(report).rejects.toThrow("no engine has answered (after 0.3 s; --start-s)");
  await report.catch(() => undefined);
});

test("rollout: engines with different weights are refused", async () => {
  const fleet = new Fleet();
  const sources = [fleet.source(weightsId("f32:aa")), fleet.source(weightsId("f32:bb"))];
  const { report, handedOut } = rolled(fleet, { sources, startS: 60 });
  expect(report).rejects.toMatchObject({ code: "invalid_config" });
  await report.catch(() => undefined);
  expect(handedOut).toEqual([]);
});

test("rollout: the folder of a server that has updated its weights is refused", async () => {
  const journal = temporaryFolder("server-journal");
  const served = new Fleet();
  const server = await openSidecar(serveOptions({ journal, sources: [served.source()] }));
  await server.opened;
  server.sidecar.advance(weightEpoch(1));
  await server.stop();
  const fleet = new Fleet();
  const { report, handedOut } = rolled(fleet, { journal, sources: [fleet.source()] });
  expect(report).rejects.toThrow("holds another run");
  await report.catch(() => undefined);
  expect(handedOut).toEqual([]);
});

test("rollout: a signal hands out what has finished, and the same job goes on from its journal", async () => {
  const journal = temporaryFolder("rollout-journal");
  const stop = new AbortController();
  const first = new Fleet();
  const job = { journal, chunkTokens: 4 };
  const left: unknown[] = [];
  const interrupted = rolled(first, {
    ...job,
    sources: [first.source()],
    signal: stop.signal,
    onGroup: (id, finished) => {
      left.push([id, finished.map(({ spec }) => spec.sampleIndex)]);
      stop.abort();
    },
  });
  expect((await interrupted.report).interrupted).toBe(true);
  // The first response of the other group has ended in the same step.
  expect(left).toEqual([
    ["short", [0]],
    ["long", [0]],
  ]);
  const other = new Fleet();
  const sampled = { ...PLAN, groups: PLAN.groups.slice(1) };
  const refused = rolled(other, { ...job, sources: [other.source()], plan: async () => sampled });
  expect(refused.report).rejects.toThrow("holds another run");
  await refused.report.catch(() => undefined);
  expect(refused.handedOut).toEqual([]);
  const second = new Fleet();
  const resumed = rolled(second, { ...job, sources: [second.source()] });
  const { resumed_tokens, output_tokens } = await resumed.report;
  expect(resumed.handedOut).toEqual(WHOLE as typeof resumed.handedOut);
  expect(resumed_tokens).toBeGreaterThan(0);
  expect(resumed_tokens + output_tokens).toBe(5 + 4 * 5 + 6 * LONG);
  expect(resumed.said[0]).toMatch(/^resumed from .* of 5 responses had ended, .* tokens are kept$/);
});
