// A rollout whose scheduler moves requests between stand-ins with ExampleConnector, with faults: every response comes
// out whole and once, much of its KV goes along, and no server ends.

import { expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { seededFaults } from "../../../test/stand-in/faults.ts";
import { standInResponse } from "../../../test/stand-in/tokens.ts";
import { VllmStandIn } from "../../../test/stand-in/vllm-stand-in.ts";
import { groupId, weightEpoch, workerId } from "../../base/ids.ts";
import { EmbeddedKvPool } from "../../kv/embedded-pool.ts";
import type { Request } from "../../request/buffer.ts";
import { drawKey, SAMPLING_DEFAULTS } from "../../request/request.ts";
import { Rollout } from "../../rollout/rollout.ts";
import { loadCore } from "../../wasm/load.ts";
import { wallTimers } from "./clock.ts";
import { KvShare } from "./kv-share.ts";
import type { VllmLimits } from "./limits.ts";
import { openVllmWorker } from "./open.ts";

const LIMITS: Partial<VllmLimits> = {
  retryMs: 1,
  retryMsMax: 4,
  pollMs: 20,
  barrenAttemptsMax: 50,
  leaveMs: 20,
};
const GROUPS = 10;
const GROUP_SIZE = 4;
const TOKENS_MAX = 100;

test("rollout: requests take their KV along, whatever fails on the way", async () => {
  const root = mkdtempSync(join(tmpdir(), "foretoken-kv-rollout-"));
  const kvShare = new KvShare({ clock: wallTimers, bytesMax: 2 ** 20, rule: "always" });
  const servers = await Promise.all(
    [0, 1].map((i) => {
      const kinds = ["broken", "unavailable", "ended", "abort", "repeat"] as const;
      const faults = seededFaults(i, { share: 0.05, tokensMax: 20, kinds });
      return VllmStandIn.start({
        slots: 8,
        kvFolder: join(root, String(i)),
        // The first requests are those of the probe.
        faults: (arrival, prompt) => (arrival < 4 ? null : faults(arrival, prompt)),
      });
    }),
  );
  const workers = await Promise.all(
    servers.map(({ url }, i) =>
      openVllmWorker({ workerId: workerId(i), url, limits: LIMITS, kvShare }),
    ),
  );
  const finished: Request[] = [];
  const failures: string[] = [];
  const over = Promise.withResolvers<void>();
  const rollout = new Rollout({
    policy: "seer",
    draft: "off",
    chunkTokens: 15,
    epoch: weightEpoch(0),
    pool: new EmbeddedKvPool({ clock: wallTimers, memoryBytesMax: 0, disk: null }),
    clock: wallTimers,
    core: loadCore(),
    listener: {
      tokens() {},
      restarted() {},
      stats() {},
      groupFinished() {},
      finished(request) {
        finished.push(request);
        if (finished.length === GROUPS * GROUP_SIZE) over.resolve();
      },
      workerFailed: (_, message) => failures.push(message),
      quarantined: ({ response }) => over.reject(new Error(response.refusal?.message)),
      threw: (error) => over.reject(error),
      broken: (error) => over.reject(error),
    },
  });
  for (let i = 0; i < GROUPS; i += 1) {
    const id = groupId(`g${i}`);
    // Many begin alike; some are a block and a token long.
    const prompt = Int32Array.from({ length: 9 + 4 * i }, (_, k) => 50 + k);
    const group = rollout.open(id, prompt);
    for (let k = 0; k < GROUP_SIZE; k += 1) {
      const tokensMax = TOKENS_MAX - 20 * (k % 3);
      const sampling = {
        ...SAMPLING_DEFAULTS,
        temperature: 1,
        seed: 3,
        tokensMax,
        stopTokenIds: [],
      };
      const draw = drawKey(3, id, k);
      rollout.join(group, { sampling, draw, divisible: true, priority: 0 });
    }
  }
  for (const worker of workers) rollout.addWorker(worker);
  try {
    await over.promise;
    for (const { spec, response } of finished) {
      const { prompt, sampleIndex: sample } = spec;
      const { tokensMax } = spec.sampling;
      const whole = standInResponse({ prompt, sample, tokensMin: 0, tokensMax, stopTokenIds: [] });
      expect([...response.tokens()]).toEqual(whole);
    }
    expect(servers.flatMap(({ endings }) => endings)).toEqual([]);
    expect(failures).toEqual([]);
    const moves = workers.map((worker) => worker.stats().kvMoves?.moves ?? 0);
    expect(Math.min(...moves)).toBeGreaterThan(0);
    // Every request is finished: nothing is kept for anybody.
    expect(kvShare.bytes).toBe(0);
  } finally {
    rollout.stop();
    await Promise.all(workers.map((worker) => worker.close()));
    await Promise.all(servers.map((server) => server.stop()));
    rmSync(root, { recursive: true, force: true });
  }
});
