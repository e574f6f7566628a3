// What listeners and observers throw stays with them: the rollout, and everybody else, goes on.

import { expect, test } from "bun:test";
import { Bed, DEAF, specFor } from "../../test/suite/sidecar-bed.ts";
import type { RolloutReader } from "../core/rollout/events.ts";

const KINDS = ["tokens", "finished", "restarted"] as const;

for (const kind of KINDS) {
  test(`listener: what it throws in ${kind} ends its generation, and no other`, async () => {
    const failures: unknown[] = [];
    const bed = new Bed({
      workers: 2,
      lengthOf: () => 30,
      isWhole: true,
      failed: (error) => failures.push(error),
    });
    const told: unknown[] = [];
    const bad: RolloutReader = {
      ...DEAF,
      [kind]: () => {
        throw new Error(`fault in ${kind}`);
      },
      threw: (error) => {
        told.push(error);
        throw new Error("fault in failed");
      },
    };
    const first = bed.sidecar.generate(specFor([1], 1), bad);
    const second = bed.sidecar.generate(specFor([2], 2), DEAF);
    for (let i = 0; i < 5; i += 1) await bed.step();
    bed.workers[0]?.kill();
    bed.addWorker();
    await bed.finish();
    expect(first.requests.map(({ status }) => status)).toEqual(["finished"]);
    expect(second.requests.map(({ response }) => [response.length, response.finish])).toEqual([
      [30, "stop"],
      [30, "stop"],
    ]);
    expect(told.map(String)).toEqual([`Error: fault in ${kind}`]);
    expect(failures.map(String)).toEqual([`Error: fault in ${kind}`, "Error: fault in failed"]);
    // It serves as before.
    const third = bed.sidecar.generate(specFor([3], 1), DEAF);
    await bed.finish();
    expect(third.requests[0]?.response.length).toBe(30);
  });
}

test("observer: what it throws reaches neither the rollout nor the observers after it", async () => {
  const failures: unknown[] = [];
  const bed = new Bed({ workers: 1, lengthOf: () => 5, failed: (error) => failures.push(error) });
  const fault = () => {
    throw new Error("fault");
  };
  bed.sidecar.observe({ joined: fault, tokens: fault, finished: fault, stats: fault });
  const heard = { joined: 0, tokens: 0, finished: 0, stats: 0 };
  const count = (kind: keyof typeof heard) => () => {
    heard[kind] += 1;
  };
  bed.sidecar.observe({
    joined: count("joined"),
    tokens: count("tokens"),
    finished: count("finished"),
    stats: count("stats"),
  });
  bed.generate([1], 2);
  await bed.finish();
  expect(heard).toMatchObject({ joined: 2, tokens: 10, finished: 2 });
  const sum = heard.joined + heard.tokens + heard.finished + heard.stats;
  expect(failures.length).toBe(sum);
});
