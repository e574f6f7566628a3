// The draft service's own source: what the rollout has of each group, whoever made it.

import { expect, test } from "bun:test";
import { newBed, specFor } from "../../../test/suite/stream-bed.ts";
import { type GroupId, groupId, weightEpoch } from "../../base/ids.ts";
import { DraftServer } from "../../draft/service/server.ts";
import type { Request } from "../../request/buffer.ts";
import { GroupFeed } from "./group-feed.ts";

const LENGTH = 20;

function world(options: { isWhole?: boolean } = {}) {
  const bed = newBed({ workers: 2, lengthOf: () => LENGTH, ...options });
  const feed = new GroupFeed(bed.sidecar);
  const server = new DraftServer({ clock: bed.clock, instanceId: 1, leads: true, source: feed });
  bed.sidecar.observe({ advanced: (epoch) => server.advance(epoch) });
  const requests: Request[] = [];
  bed.sidecar.observe({ joined: (request) => requests.push(request) });
  const ask = (n: number) =>
    bed.sidecar.generate(specFor([1, 2, 3], n), { tokens() {}, finished() {}, restarted() {} });
  const register = (name: GroupId, epoch = 0) =>
    server.register({
      kind: "register_group",
      epoch: weightEpoch(epoch),
      groupId: name,
      ttlMs: 60_000,
      prompt: Int32Array.of(1, 2, 3),
    });
  const fetch = (name: GroupId, have: number[], epoch = 0) =>
    server.fetchDeltas({
      kind: "fetch",
      epoch: weightEpoch(epoch),
      states: [{ groupId: name, have }],
    });
  return { bed, server, feed, requests, ask, register, fetch };
}

test("register: an engine that comes late is told at once how much there is", async () => {
  const { bed, ask, requests, register } = world();
  ask(3);
  await bed.step();
  await bed.step();
  const [name] = requests.map(({ spec }) => spec.groupId);
  const { have, status } = register(name ?? groupId("none"));
  expect(status).toBe("ok");
  expect(have).toEqual(requests.map(({ response }) => response.length));
  expect(have.every((length) => length > 0)).toBe(true);
});

test("fetch: brings every sibling's tokens as the rollout gets them", async () => {
  const { bed, ask, requests, register, fetch } = world();
  ask(2);
  const name = requests[0]?.spec.groupId ?? groupId("none");
  register(name);
  await bed.finish();
  const answer = fetch(name, [5, 0]);
  expect(answer.groups[0]?.deltas.map(({ offset, tokens }) => [offset, [...tokens]])).toEqual(
    requests.map(({ response }, i) => [i === 0 ? 5 : 0, [...response.tokens(i === 0 ? 5 : 0)]]),
  );
});

test("fetch: what an engine has told before is not told twice", async () => {
  const { bed, ask, requests, register, fetch, server } = world();
  ask(1);
  const name = requests[0]?.spec.groupId ?? groupId("none");
  register(name);
  await bed.finish();
  const tokens = requests[0]?.response.tokens().slice(0, 12) ?? new Int32Array(0);
  server.update({
    kind: "update",
    epoch: weightEpoch(0),
    groups: [{ groupId: name, deltas: [{ sampleIndex: 0, offset: 0, tokens }] }],
  });
  fetch(name, [0]);
  expect(server.stats()).toMatchObject({ tokensTaken: LENGTH, tokensOwn: LENGTH - 12 });
});

test("fetch: a response that began anew is another sample, for engines know another beginning", async () => {
  const { bed, ask, requests, register, fetch } = world({ isWhole: true });
  ask(1);
  await bed.step();
  await bed.step();
  const [request] = requests;
  const name = request?.spec.groupId ?? groupId("none");
  register(name);
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

test("fetch: groups that nobody registered, or that the rollout has let go, have no source", async () => {
  const { bed, ask, requests, register, fetch } = world();
  ask(1);
  await bed.finish();
  await bed.sidecar.drain();
  const name = requests[0]?.spec.groupId ?? groupId("none");
  expect(fetch(name, []).unknown).toEqual([name]);
  expect(register(name).have).toEqual([]);
});

test("advance: the service follows the sidecar, and nobody else", async () => {
  const { bed, server, register } = world();
  register(groupId("a"));
  expect(register(groupId("b"), 7).status).toBe("stale_epoch");
  expect(server.epoch).toBe(weightEpoch(0));
  bed.sidecar.advance(weightEpoch(1));
  expect(server.stats()).toMatchObject({ epoch: 1, groups: 0, stale: 1 });
  expect(register(groupId("a"), 0).status).toBe("stale_epoch");
  expect(register(groupId("a"), 1).status).toBe("ok");
});
