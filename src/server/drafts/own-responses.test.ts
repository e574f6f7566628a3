// The draft service's own source: what the rollout has of each group, whoever made it.

import { expect, test } from "bun:test";
import { fetchOf, registerOf, updateOf } from "../../../test/suite/draft-client.ts";
import { Bed, DEAF, specFor } from "../../../test/suite/sidecar-bed.ts";
import { type GroupId, groupId, weightEpoch } from "../../core/base/ids.ts";
import { DraftServer } from "../../core/draft/service/server.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";

const LENGTH = 20;

function world(options: { isWhole?: boolean } = {}) {
  const bed = new Bed({ workers: 2, lengthOf: () => LENGTH, ...options });
  const server = new DraftServer({
    clock: bed.clock,
    instanceId: 1,
    leads: true,
    source: bed.sidecar.rollout,
  });
  bed.sidecar.observe({ advanced: (epoch) => server.advance(epoch) });
  const requests: RolloutRequest[] = [];
  bed.sidecar.observe({ joined: (request) => requests.push(request) });
  const ask = (n: number) => bed.sidecar.generate(specFor([1, 2, 3], n), DEAF);
  const register = (name: GroupId, epoch = 0) =>
    server.register(registerOf(name, Int32Array.of(1, 2, 3), epoch));
  const fetch = (name: GroupId, have: number[]) => server.fetchDeltas(fetchOf(name, have));
  /** A group of `n` that has run for so many steps, and is registered. */
  const begun = async (n: number, steps: number) => {
    ask(n);
    for (let i = 0; i < steps; i += 1) await bed.step();
    const name = requests[0]?.spec.groupId ?? groupId("none");
    return { name, ...register(name) };
  };
  return { bed, server, requests, ask, register, fetch, begun };
}

test("fetch: tokens that an engine sends ahead are kept until the response has them, and given once", async () => {
  const told = world();
  told.ask(1);
  await told.bed.finish();
  const tokens = told.requests[0]?.response.tokens() ?? new Int32Array(0);
  const { bed, requests, begun, fetch, server } = world();
  const { name } = await begun(1, 2);
  const first = requests[0]?.response.length ?? 0;
  expect(first).toBeGreaterThan(0);
  expect(first).toBeLessThan(12);
  server.update(updateOf(name, { sampleIndex: 0, offset: 0, tokens: tokens.slice(0, 12) }));
  const early = fetch(name, [first - 1]).groups[0]?.deltas[0];
  expect([early?.offset, [...(early?.tokens ?? [])]]).toEqual([
    first - 1,
    [...tokens.subarray(first - 1, 12)],
  ]);
  const ahead = server.stats().bytes;
  await bed.finish();
  const late = fetch(name, [12]).groups[0]?.deltas[0];
  expect([...(late?.tokens ?? [])]).toEqual([...tokens.subarray(12)]);
  const { bytes, tokensTaken, tokensOwn } = server.stats();
  expect({ tokensTaken, tokensOwn }).toEqual({
    tokensTaken: LENGTH,
    tokensOwn: LENGTH,
  });
  // The response's own column has room for all of it: what was told ahead is gone.
  expect(ahead - bytes).toBe(4 * 64);
});

test("fetch: tokens of an aborted attempt are replaced by the response's", async () => {
  const { bed, requests, begun, fetch, server } = world();
  const { name } = await begun(2, 1);
  const tokens = new Int32Array(LENGTH).fill(7);
  server.update(updateOf(name, { sampleIndex: 1, offset: 0, tokens }));
  await bed.finish();
  const [group] = fetch(name, [LENGTH, 0]).groups;
  const delta = group?.deltas.find(({ sampleIndex }) => sampleIndex === 1);
  expect([...(delta?.tokens ?? [])]).toEqual([...(requests[1]?.response.tokens() ?? [])]);
  // Nobody is asked to send again what a followed response will bring.
  expect(fetch(name, [LENGTH + 5, LENGTH]).groups).toEqual([]);
});

test("fetch: a response that restarted is another sample, because engines have another beginning", async () => {
  const { bed, requests, begun, fetch } = world({ isWhole: true });
  const { name } = await begun(1, 2);
  const [request] = requests;
  const before = request?.response.length ?? 0;
  expect(before).toBeGreaterThan(0);
  const runner = bed.workers.find(({ workerId }) => workerId === request?.workerId);
  runner?.kill();
  await bed.finish();
  expect(request?.response.length).toBe(LENGTH);
  const [group] = fetch(name, [before]).groups;
  expect(group?.deltas.map(({ sampleIndex, offset }) => [sampleIndex, offset])).toEqual([[1, 0]]);
  expect([...(group?.deltas[0]?.tokens ?? [])]).toEqual([...(request?.response.tokens() ?? [])]);
});

test("fetch: groups that were not registered, or were dropped by the rollout, have no source", async () => {
  const { bed, ask, requests, register, fetch } = world();
  ask(1);
  await bed.finish();
  await bed.sidecar.drain();
  const name = requests[0]?.spec.groupId ?? groupId("none");
  expect(fetch(name, []).unknown).toEqual([name]);
  expect(register(name).have).toEqual([]);
});

test("advance: the service follows the sidecar only", async () => {
  const { bed, server, register } = world();
  register(groupId("a"));
  expect(register(groupId("b"), 7).status).toBe("stale_epoch");
  expect(server.epoch).toBe(weightEpoch(0));
  bed.sidecar.advance(weightEpoch(1));
  expect(server.stats()).toMatchObject({ epoch: 1, groups: 0 });
  expect(register(groupId("a"), 0).status).toBe("stale_epoch");
  expect(register(groupId("a"), 1).status).toBe("ok");
});
