// What counts as an iteration, and what is said of it.

import { expect, test } from "bun:test";
import { Bed, DEAF, specFor } from "../../test/suite/sidecar-bed.ts";
import { weightEpoch } from "../core/base/ids.ts";
import type { IterationSummary } from "../core/rollout/iteration-span.ts";
import { Iterations } from "./iterations.ts";

function counted(lengthOf = () => 10) {
  const bed = new Bed({ workers: 1, lengthOf });
  const ended: IterationSummary[] = [];
  const laters: (() => void)[] = [];
  const iterations = new Iterations({
    sidecar: bed.sidecar,
    later: (act) => {
      laters.push(act);
      return () => laters.splice(laters.indexOf(act), 1);
    },
    ended: (summary) => ended.push(summary),
  });
  return { bed, ended, laters, iterations };
}

test("iteration: from the first request until the weights advance", async () => {
  const { bed, ended } = counted();
  for (let i = 0; i < 5; i += 1) bed.generate([i], 2);
  await bed.finish();
  bed.sidecar.advance(weightEpoch(1));
  expect(ended).toHaveLength(1);
  expect(ended[0]).toMatchObject({
    weightEpoch: 0,
    unfinished: 0,
    figures: {
      requests: 10,
      output_tokens: 100,
      failed_requests: 0,
      aborted_requests: 0,
      restarts: 0,
    },
  });
  expect(ended[0]?.seconds).toBeGreaterThan(0);
  expect(ended[0]?.tailS).toBeLessThanOrEqual(ended[0]?.seconds ?? 0);
  // Weights that advance without a request between are no iteration.
  bed.sidecar.advance(weightEpoch(2));
  expect(ended).toHaveLength(1);
});

test("iteration: without an update it ends when nothing has come for a while", async () => {
  const { bed, ended, laters } = counted();
  bed.generate([1], 1);
  await bed.finish();
  expect(laters).toHaveLength(1);
  // Another request goes on with it.
  bed.generate([2], 1);
  expect(laters).toHaveLength(0);
  await bed.finish();
  laters.splice(0).map((act) => act());
  expect(ended.map(({ figures }) => figures.requests)).toEqual([2]);
  bed.generate([3], 1);
  await bed.finish();
  bed.sidecar.advance(weightEpoch(1));
  expect(ended.map(({ figures }) => figures.requests)).toEqual([2, 1]);
});

test("iteration: it ends with a rollout of /v1/rollouts, unless other requests still run", async () => {
  const { bed, ended } = counted();
  bed.generate([1], 2);
  bed.sidecar.rolloutOver();
  expect(ended).toHaveLength(0);
  await bed.finish();
  bed.sidecar.rolloutOver();
  expect(ended.map(({ figures }) => figures.requests)).toEqual([2]);
});

test("iteration: given-up and unfinished responses are counted apart", async () => {
  const { bed, ended, iterations } = counted(() => 50);
  const [one, two] = [1, 2].map((token) => bed.sidecar.generate(specFor([token], 1), DEAF));
  for (let i = 0; i < 5; i += 1) await bed.step();
  one?.abort();
  iterations.end();
  expect(ended[0]).toMatchObject({
    unfinished: 1,
    figures: { requests: 2, aborted_requests: 1, failed_requests: 0 },
  });
  two?.abort();
  expect(ended).toHaveLength(1);
});
