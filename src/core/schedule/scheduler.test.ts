import { expect, spyOn, test } from "bun:test";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { present } from "../base/assert.ts";
import { groupId, weightEpoch, workerId } from "../base/ids.ts";
import { ContextManager } from "../context/context.ts";
import { Attempts } from "../request/attempts.ts";
import { RequestBuffer, type RolloutRequest, type Whereabouts } from "../request/buffer.ts";
import { loadCore } from "../wasm/load.ts";
import { ChunkLength } from "./chunk-length.ts";
import { KeyedPolicy } from "./keyed.ts";
import type { Slot } from "./placement.ts";
import { place } from "./placement.ts";
import { byArrival, type SchedulePolicy } from "./policy.ts";
import { ProbeFirstPolicy, STARVATION_PERIOD } from "./probe-first.ts";
import { DISPATCHES_AHEAD_MIN } from "./reservation.ts";
import { PASSED_MAX, Scheduler } from "./scheduler.ts";

const core = loadCore();
const TOKENS_MAX = 1000;

function bufferOf(groups: number, size: number): RequestBuffer {
  const buffer = new RequestBuffer();
  for (let i = 0; i < groups; i += 1) {
    buffer.add({
      groupId: groupId(`g${i}`),
      prompt: Int32Array.of(1, 2, 3),
      size,
      sampling: samplingOf({ tokensMax: TOKENS_MAX }),
    });
  }
  return buffer;
}

function contextOf(buffer: RequestBuffer): ContextManager {
  const context = new ContextManager();
  for (const request of buffer.requests) context.joined(request);
  return context;
}

function probeFirst(buffer: RequestBuffer, context: ContextManager): ProbeFirstPolicy {
  return new ProbeFirstPolicy({ buffer, context, core });
}

function slot(id: number, overrides: Partial<Slot> = {}): Slot {
  const room = { slots: 16, ahead: 0, inFlight: 0, kvTokens: 10_000, kvTokensFree: 10_000 };
  const nobody = { hasSuspect: false, isReserved: false, running: [], kvTokensLeaving: 0 };
  const usual = { pace: 1, baseRequests: 0, sharesKv: false, rowMs: Number.NaN };
  const kv = { aheadTokens: Number.POSITIVE_INFINITY, blockTokens: 1 };
  return { workerId: workerId(id), ...kv, ...room, ...nobody, ...usual, ...overrides };
}

function member(buffer: RequestBuffer, group: number, sample: number): RolloutRequest {
  return present(buffer.groupAt(group).requests[sample], "the request exists");
}

/** As its dispatch does. */
function put(request: RolloutRequest, fields: Partial<Whereabouts>): void {
  Object.assign(new RequestBuffer().whereabouts(request), fields);
}

function generate(request: RolloutRequest, tokens: number): void {
  const from = request.response.length;
  request.response.append(from, new Int32Array(tokens), new Float32Array(tokens));
}

/** Serves everything the policy has, one at a time, as group:sample. */
function order(policy: ProbeFirstPolicy | KeyedPolicy): string[] {
  const served: string[] = [];
  for (let request = policy.peek(); request !== null; request = policy.peek()) {
    policy.take(request);
    served.push(`${request.group.index}:${request.spec.sampleIndex}`);
  }
  return served;
}

test("seer: every group's probe is served before any other request", () => {
  const buffer = bufferOf(3, 3);
  const policy = probeFirst(buffer, contextOf(buffer));
  for (const request of [...buffer.requests].toReversed()) policy.add(request);
  expect(order(policy).slice(0, 3)).toEqual(["0:0", "1:0", "2:0"]);
});

test("seer: of the probes, the one with the fewest tokens is served first", () => {
  const buffer = bufferOf(3, 1);
  generate(member(buffer, 0, 0), 50);
  generate(member(buffer, 1, 0), 10);
  generate(member(buffer, 2, 0), 30);
  const policy = probeFirst(buffer, contextOf(buffer));
  for (const request of buffer.requests) policy.add(request);
  expect(order(policy)).toEqual(["1:0", "2:0", "0:0"]);
});

const arrivalOf = (buffer: RequestBuffer): KeyedPolicy =>
  new KeyedPolicy({ buffer, core }, byArrival);

const dividing = (policy: SchedulePolicy, chunkTokens: number): Scheduler =>
  new Scheduler(policy, { kind: "divided", chunks: new ChunkLength(chunkTokens) });

function seerOf(groups: number, size: number) {
  const buffer = bufferOf(groups, size);
  const context = contextOf(buffer);
  return { buffer, context, policy: probeFirst(buffer, context) };
}

test("seer: after the probes, the group with the longest estimate is served first", () => {
  const { buffer, context, policy } = seerOf(3, 3);
  const lengths = [100, 300, 200];
  for (const group of buffer.groups) {
    const probe = member(buffer, group.index, 0);
    generate(probe, lengths[group.index] ?? 0);
    context.finished(probe);
    for (const request of group.requests.slice(1)) policy.add(request);
  }
  expect(order(policy)).toEqual(["1:1", "1:2", "2:1", "2:2", "0:1", "0:2"]);
});

test("seer: within a group, the response that has come furthest is served first", () => {
  const { buffer, context, policy } = seerOf(1, 4);
  context.finished(member(buffer, 0, 0));
  generate(member(buffer, 0, 2), 40);
  for (const sample of [1, 2, 3]) policy.add(member(buffer, 0, sample));
  expect(order(policy)).toEqual(["0:2", "0:1", "0:3"]);
});

test("seer: a group whose estimate rises while it waits moves up", () => {
  const { buffer, context, policy } = seerOf(2, 3);
  for (const [index, tokens] of [100, 50].entries()) {
    const probe = member(buffer, index, 0);
    generate(probe, tokens);
    context.finished(probe);
    policy.add(member(buffer, index, 2));
  }
  const running = member(buffer, 1, 1);
  generate(running, 400);
  context.progressed(running);
  policy.refresh(running.group);
  expect(order(policy)).toEqual(["1:2", "0:2"]);
});

test("seer: a waiting probe joins the rest when a sibling finishes first", () => {
  const { buffer, context, policy } = seerOf(2, 2);
  policy.add(member(buffer, 0, 0));
  policy.add(member(buffer, 1, 0));
  const sibling = member(buffer, 0, 1);
  generate(sibling, 20);
  context.finished(sibling);
  policy.refresh(sibling.group);
  expect(policy.isUrgent(member(buffer, 0, 0))).toBe(false);
  expect(order(policy)).toEqual(["1:0", "0:0"]);
});

test("seer: a group with a short estimate is served within one starvation period", () => {
  const { buffer, context, policy } = seerOf(2, 64);
  for (const [index, tokens] of [900, 1].entries()) {
    const probe = member(buffer, index, 0);
    generate(probe, tokens);
    context.finished(probe);
  }
  for (const request of buffer.requests) if (request.spec.sampleIndex > 0) policy.add(request);
  const served = order(policy).slice(0, STARVATION_PERIOD);
  expect(served.filter((name) => name.startsWith("1:")).length).toBe(1);
});

test("divided: requests are served in order of arrival, also after a chunk", () => {
  const buffer = bufferOf(2, 2);
  const policy = arrivalOf(buffer);
  for (const request of [...buffer.requests].toReversed()) policy.add(request);
  expect(order(policy)).toEqual(["0:0", "0:1", "1:0", "1:1"]);
});

test("place: stays where the KV is while the load is balanced, else goes to the least loaded", () => {
  const request = member(bufferOf(1, 1), 0, 0);
  put(request, { residentOn: workerId(0), residentTokens: 3 });
  const at = (home: number, other: number) =>
    place(request, [slot(0, { inFlight: home }), slot(1, { inFlight: other })], 8)?.workerId;
  expect(at(0, 0)).toBe(workerId(0));
  expect(at(1, 0)).toBe(workerId(1));
  expect(at(10, 8)).toBe(workerId(0));
  expect(at(12, 8)).toBe(workerId(1));
});

test("place: a slow worker gets fewer requests, and keeps one only while its tokens take little longer there", () => {
  const buffer = bufferOf(1, 1);
  const request = member(buffer, 0, 0);
  const chosen = (slots: Slot[]) => place(request, slots, 100)?.workerId ?? null;
  const fast = slot(1, { inFlight: 4 });
  // 2 x 3 requests here, 5 there.
  expect(chosen([slot(0, { inFlight: 2, pace: 2 }), fast])).toBe(workerId(1));
  expect(chosen([slot(0, { inFlight: 1, pace: 2 }), fast])).toBe(workerId(0));
  // Where steps hardly depend on their requests, only the pace counts.
  const alone = { inFlight: 0, pace: 2, baseRequests: 100 };
  expect(chosen([slot(0, alone), slot(1, { inFlight: 4, baseRequests: 100 })])).toBe(workerId(1));
  put(request, { residentOn: workerId(0) });
  expect(chosen([slot(0, { inFlight: 2, pace: 2 }), fast])).toBe(workerId(0));
  expect(chosen([slot(0, { inFlight: 3, pace: 2 }), fast])).toBe(workerId(1));
});

test("place: a turn goes where its prefix is until the load there costs more than computing it elsewhere", () => {
  const buffer = new RequestBuffer();
  const group = buffer.open(groupId("g"), Int32Array.of(1, 2, 3));
  const turn = { prompt: new Int32Array(800), leadTokens: 10 };
  const sampling = samplingOf({ tokensMax: 100 });
  const draw = { hi: 0, lo: 0 };
  const request = buffer.join(group, { sampling, draw, divisible: true, priority: 0, turn });
  const at = (home: number, more: Partial<Slot> = {}) =>
    place(request, [slot(0, { inFlight: home, ...more }), slot(1, more)], 100)?.workerId;
  expect(at(1)).toBe(workerId(1));
  // The turn before ran there, and its KV is in the prefix cache.
  put(request, { workerId: workerId(0), computedTokens: 790 });
  expect([at(3), at(4)]).toEqual([workerId(0), workerId(1)]);
  // Prefill on a worker delays the requests that run there.
  const busy = [slot(0, { inFlight: 6 }), slot(1, { inFlight: 2 })];
  expect(place(request, busy, 100)?.workerId).toBe(workerId(0));
  // Where others can load it, only that is saved.
  expect(at(1, { sharesKv: true })).toBe(workerId(1));
});

test("place: a worker without a slot or without KV for the whole chunk is no choice", () => {
  const request = member(bufferOf(1, 1), 0, 0);
  expect(place(request, [slot(0, { inFlight: 16 })], 8)).toBeNull();
  expect(place(request, [slot(0, { kvTokensFree: 10 })], 8)).toBeNull();
  expect(place(request, [slot(0, { kvTokensFree: 11 })], 8)?.workerId).toBe(workerId(0));
});

test("schedule: parked KV of requests that must wait makes way", () => {
  const buffer = bufferOf(1, 3);
  const scheduler = dividing(arrivalOf(buffer), 8);
  for (const request of buffer.requests) {
    put(request, { residentOn: workerId(0), residentTokens: 3 });
    scheduler.enqueue(request);
  }
  const commands = scheduler.schedule([slot(0, { slots: 1 })]);
  expect(commands.map((c) => `${c.kind} ${c.request.spec.sampleIndex}`)).toEqual([
    "dispatch 0",
    "offload 1",
    "offload 2",
  ]);
});

test("group: whole groups go to the workers in turn, undivided, without admission", () => {
  const buffer = bufferOf(3, 4);
  const scheduler = new Scheduler(arrivalOf(buffer), { kind: "pinned" });
  for (const request of buffer.requests) scheduler.enqueue(request);
  const commands = scheduler.schedule([slot(0, { slots: 1 }), slot(1, { slots: 1 })]);
  expect(commands.length).toBe(12);
  for (const command of commands) {
    const id = workerId(command.request.group.index % 2);
    expect(command).toMatchObject({ kind: "dispatch", chunkTokens: TOKENS_MAX, workerId: id });
  }
});

/** Requests of groups of one, each with its prompt's length, its bound, and whether it can be divided. */
function mixed(
  wanted: readonly { prompt: number; tokensMax?: number; divisible?: boolean }[],
): RolloutRequest[] {
  const buffer = new RequestBuffer();
  return wanted.map(({ prompt, tokensMax = 10, divisible = true }, i) => {
    const group = buffer.open(groupId(`g${i}`), new Int32Array(prompt));
    const sampling = samplingOf({ tokensMax });
    return buffer.join(group, { sampling, draw: { hi: 0, lo: i }, divisible, priority: 0 });
  });
}

function arrivalOrder(requests: readonly RolloutRequest[], chunkTokens = 10): Scheduler {
  const byIndex = new Map(requests.map((request) => [request.index, request]));
  const buffer = { requestAt: (index: number) => byIndex.get(index) } as unknown as RequestBuffer;
  const scheduler = dividing(arrivalOf(buffer), chunkTokens);
  for (const request of requests) scheduler.enqueue(request);
  return scheduler;
}

const dispatched = (scheduler: Scheduler, slots: Slot[], kvTokensMax?: number) =>
  scheduler
    .schedule(slots, kvTokensMax)
    .flatMap((c) => (c.kind === "dispatch" ? [`${c.request.index}@${c.workerId}`] : []));

test("schedule: small requests go ahead of a large one that must wait for room", () => {
  const requests = mixed([{ prompt: 500 }, ...Array(40).fill({ prompt: 10 })]);
  const scheduler = arrivalOrder(requests);
  const small = dispatched(scheduler, [slot(0, { slots: 64, kvTokens: 1000, kvTokensFree: 480 })]);
  expect(small.length).toBe(480 / 20);
  expect(small[0]).toBe("1@0");
});

test("schedule: a request that a worker could soon hold keeps its place", () => {
  const requests = mixed([{ prompt: 100 }, { prompt: 10 }]);
  const scheduler = arrivalOrder(requests);
  expect(dispatched(scheduler, [slot(0, { kvTokens: 1000, kvTokensFree: 90 })])).toEqual([]);
});

test("schedule: a large request that many went ahead of gets a worker of its own", () => {
  const large = { prompt: 900 };
  const requests = mixed([large, ...Array(400).fill({ prompt: 10 })]);
  const scheduler = arrivalOrder(requests);
  // Each turn one small request ends and leaves its room: never enough for the large one.
  let ahead = 0;
  for (; ahead < 400; ahead += 1) {
    const slots = [slot(0, { slots: 8, kvTokens: 1000, kvTokensFree: 25 })];
    if (dispatched(scheduler, slots).length === 0) break;
  }
  expect(ahead).toBeGreaterThanOrEqual(DISPATCHES_AHEAD_MIN);
  expect(ahead).toBeLessThanOrEqual(DISPATCHES_AHEAD_MIN + 2);
  const drained = [slot(0, { slots: 8, kvTokens: 1000, kvTokensFree: 950 })];
  expect(dispatched(scheduler, drained)).toEqual(["0@0", `${ahead + 1}@0`, `${ahead + 2}@0`]);
});

test("schedule: while one worker is kept free, the others serve on", () => {
  const requests = mixed([{ prompt: 900 }, ...Array(400).fill({ prompt: 10 })]);
  const scheduler = arrivalOrder(requests);
  const slots = () => [0, 1].map((id) => slot(id, { slots: 2, kvTokens: 1000, kvTokensFree: 30 }));
  for (let turn = 0; turn < DISPATCHES_AHEAD_MIN; turn += 1) scheduler.schedule(slots());
  const now = dispatched(scheduler, slots());
  expect(now.length).toBe(1);
  expect(now[0]).toEndWith("@1");
});

test("schedule: one that no worker there can hold waits for a larger one, and delays no other", () => {
  const requests = mixed([...Array(100).fill({ prompt: 3000 }), { prompt: 10 }]);
  const scheduler = arrivalOrder(requests);
  const small = { kvTokens: 1000, kvTokensFree: 1000 };
  const [first, ...rest] = scheduler.schedule([slot(0, small)], 4000);
  expect(first).toMatchObject({ kind: "dispatch", chunkTokens: 10, reservedTokens: 20 });
  expect([first?.request, ...rest]).toEqual([requests[100] as RolloutRequest]);
  expect(scheduler.schedule([slot(0, small)], 4000)).toEqual([]);
  const large = slot(1, { slots: 200, kvTokens: 4000, kvTokensFree: 4000 });
  expect(dispatched(scheduler, [slot(0, small), large], 4000)).toEqual(["0@1"]);
});

test("schedule: one that no worker that may come back can hold is rejected", () => {
  const [request] = mixed([{ prompt: 3000 }]);
  const scheduler = arrivalOrder([request as RolloutRequest]);
  const small = { kvTokens: 1000, kvTokensFree: 1000 };
  expect(scheduler.schedule([slot(0, small)], 4000)).toEqual([]);
  expect(scheduler.schedule([slot(0, small)], 2000)).toEqual([
    { kind: "reject", request: request as RolloutRequest, kvTokensNeeded: 3010 },
  ]);
});

test("schedule: suspects run one at a time on a worker, others beside them, and no other request begins there", () => {
  const requests = mixed(Array(8).fill({ prompt: 10, tokensMax: 50 }));
  for (const request of requests.slice(0, 4)) {
    request.attempts = new Attempts();
    request.attempts.died(
      { suspects: 4, isUnknown: false },
      { tokens: 0, divisible: true, report: "" },
    );
  }
  for (const request of requests.slice(4, 6)) generate(request, 5);
  const scheduler = arrivalOrder(requests);
  const slots = [slot(0), slot(1)];
  const first = dispatched(scheduler, slots);
  expect(first[0]).toBe("0@0");
  expect(first.slice(1).toSorted()).toEqual(["4@1", "5@0", "6@1", "7@1"].toSorted());
  // Its worker is taken until the suspect is cleared.
  expect(dispatched(scheduler, [slot(0, { hasSuspect: true }), slot(1)])).toEqual([]);
  expect(dispatched(scheduler, [slot(0), slot(1)])).toEqual(["1@0"]);
});

test("schedule: 16,000 requests that fit nowhere cost a turn a bounded number of looks", () => {
  const requests = mixed(Array(16_000).fill({ prompt: 500 }));
  const scheduler = arrivalOrder(requests);
  const looked = spyOn(KeyedPolicy.prototype, "peek");
  try {
    scheduler.schedule([slot(0, { kvTokens: 1000, kvTokensFree: 100 })]);
    expect(looked.mock.calls.length).toBeLessThanOrEqual(PASSED_MAX + 2);
  } finally {
    looked.mockRestore();
  }
});

test("schedule: what found no room is looked at again once another request comes, or a worker has more", () => {
  const requests = mixed([{ prompt: 500 }, { prompt: 10 }]);
  const scheduler = arrivalOrder(requests);
  const room = (kvTokensFree: number) => slot(0, { kvTokens: 1000, kvTokensFree, inFlight: 2 });
  expect(dispatched(scheduler, [slot(0, { kvTokens: 1000, kvTokensFree: 100 })])).toEqual(["1@0"]);
  const looked = spyOn(KeyedPolicy.prototype, "peek");
  expect(dispatched(scheduler, [room(80)])).toEqual([]);
  expect(looked).not.toHaveBeenCalled();
  looked.mockRestore();
  scheduler.enqueue(present(requests[1], "the small one"));
  expect(dispatched(scheduler, [room(80)])).toEqual(["1@0"]);
  expect(dispatched(scheduler, [room(600)])).toEqual(["0@0"]);
});

test("seer: nothing is kept of groups that are done with", async () => {
  const buffer = bufferOf(10_000, 1);
  const context = contextOf(buffer);
  const policy = probeFirst(buffer, context);
  const groups = [...buffer.groups];
  const alive = groups.map((group) => new WeakRef(group));
  for (const group of groups) {
    const request = present(group.requests[0], "a group has a request");
    policy.add(request);
    policy.take(request);
    context.finished(request);
    policy.refresh(group);
    buffer.move(request, "finished");
    policy.forget(group);
    context.forget(group);
    buffer.remove(group);
  }
  groups.length = 0;
  await Bun.sleep(0);
  Bun.gc(true);
  // The collector is conservative: it may keep what a stale word on the stack points to.
  expect(alive.filter((ref) => ref.deref() !== undefined).length).toBeLessThan(100);
});

function running(requests: readonly RolloutRequest[], tokens: number): RolloutRequest[] {
  const buffer = new RequestBuffer();
  for (const request of requests) {
    buffer.move(request, "moving");
    buffer.move(request, "running");
    put(request, { residentTokens: tokens });
  }
  return [...requests];
}

test("admission: a request begins with KV for what it has and some tokens ahead, not for its chunk", () => {
  const requests = mixed(Array.from({ length: 3 }, () => ({ prompt: 10, tokensMax: 900 })));
  const commands = arrivalOrder(requests, 900).schedule([
    slot(0, { kvTokens: 1000, kvTokensFree: 40, aheadTokens: 8 }),
  ]);
  expect(commands.map((command) => command.kind === "dispatch" && command.reservedTokens)).toEqual([
    18, 18,
  ]);
});

test("admission: KV is reserved in whole blocks, and a request may need all of them", () => {
  const reserved = (kvTokens: number, prompt: number) => {
    const [request] = mixed([{ prompt }]);
    const room = { kvTokens, kvTokensFree: kvTokens, blockTokens: 32, aheadTokens: 8 };
    const [command] = arrivalOrder([present(request, "one")], 8).schedule([slot(0, room)]);
    return command?.kind === "dispatch" ? command.reservedTokens : null;
  };
  expect([reserved(2048, 20), reserved(2048, 25), reserved(2048, 2040)]).toEqual([32, 64, 2048]);
  // A budget that is no multiple of a block.
  expect(reserved(2050, 2042)).toBe(2050);
});

test("admission: where chunks are short, two of them stay free for those that run to grow", () => {
  const begun = (kvTokensFree: number, chunkTokens: number, inFlight: number) => {
    const requests = mixed([{ prompt: 10, tokensMax: 900 }]);
    const room = { kvTokens: 2560, kvTokensFree, aheadTokens: 10, inFlight };
    return arrivalOrder(requests, chunkTokens).schedule([slot(0, room)]).length;
  };
  expect([begun(20 + 127, 64, 2), begun(20 + 128, 64, 2)]).toEqual([0, 1]);
  // Nothing runs that could grow; and two long chunks would be more than a sixteenth of the KV.
  expect([begun(20, 64, 0), begun(20, 100, 2)]).toEqual([1, 1]);
  // Whole chunks are reserved anyhow.
  expect(begun(20, 10, 2)).toBe(1);
});

test("admission: short of KV, the smallest request that frees a sixteenth of it makes way, else the largest", () => {
  const requests = running([...bufferOf(1, 6).requests], 0);
  const sizes = [900, 100, 500, 130, 20, 200];
  for (const [i, request] of requests.entries()) put(request, { residentTokens: sizes[i] ?? 0 });
  const at = (kvTokensFree: number) => {
    const overrides = { kvTokens: 2048, running: requests, inFlight: 6, aheadTokens: 0 };
    const commands = arrivalOrder([]).schedule([slot(0, { ...overrides, kvTokensFree })]);
    return commands.map(({ request }) => request.residentTokens);
  };
  expect(at(-1)).toEqual([130]);
  expect(at(-131)).toEqual([130, 200]);
  // Never the one that was dispatched first, however much is wanted.
  expect(at(-9999)).toEqual([130, 200, 500, 100, 20]);
});

test("admission: short of KV, the request makes way that lies least beyond a full block, unless it is much larger", () => {
  const requests = mixed([
    { prompt: 40, tokensMax: 900 },
    { prompt: 33 + 31, tokensMax: 900 },
    { prompt: 33 + 1, tokensMax: 900 },
    { prompt: 33 + 0, tokensMax: 900 },
  ]);
  const room = { kvTokens: 2048, blockTokens: 32, inFlight: 4, aheadTokens: 0, kvTokensFree: -1 };
  const slots = [slot(0, { ...room, running: running(requests, 0) })];
  const at = (sizes: number[]) => {
    for (const [i, request] of requests.entries()) put(request, { residentTokens: sizes[i] ?? 0 });
    const [command] = arrivalOrder([]).schedule(slots);
    return requests.indexOf(present(command, "one makes way").request);
  };
  expect(at([200, 200, 200, 200])).toBe(3);
  // 64 tokens of KV more cost as much as two tokens that are computed again.
  expect(at([200, 200, 200, 264])).toBe(2);
});

test("admission: of requests of one size, those that were dispatched last make way, as many as it takes", () => {
  const requests = running([...bufferOf(1, 5).requests], 100);
  const scheduler = arrivalOrder([]);
  const at = (kvTokensFree: number, kvTokensLeaving = 0) => {
    const overrides = { running: requests, inFlight: 5, aheadTokens: 8, kvTokensFree };
    const commands = scheduler.schedule([slot(0, { ...overrides, kvTokensLeaving })]);
    return commands.map((command) => `${command.kind} ${command.request.spec.sampleIndex}`);
  };
  // Half of what is kept ahead of five requests is 20.
  expect(at(-20)).toEqual([]);
  expect(at(-21)).toEqual(["preempt 4"]);
  expect(at(-120)).toEqual(["preempt 4", "preempt 3"]);
  expect(at(-120, 100)).toEqual([]);
  expect(at(-9999)).toEqual(["preempt 4", "preempt 3", "preempt 2", "preempt 1"]);
});

test("admission: suspects and undivided requests do not make way", () => {
  const requests = running([...bufferOf(1, 3).requests], 100);
  const last = present(requests[2], "there are three");
  last.attempts = new Attempts();
  last.attempts.died({ suspects: 1, isUnknown: false }, { tokens: 0, divisible: true, report: "" });
  requests[1] = {
    ...present(requests[1], "there are three"),
    spec: { ...last.spec, divisible: false },
  };
  const overrides = { running: requests, inFlight: 3, aheadTokens: 8, kvTokensFree: -50 };
  expect(arrivalOrder([]).schedule([slot(0, overrides)])).toEqual([]);
});

test("sessions: KV of a pause is kept for longer the more runs beside it, and the less a step depends on its rows the shorter", () => {
  const buffer = bufferOf(1, 2);
  const [paused, running] = [member(buffer, 0, 0), member(buffer, 0, 1)];
  put(paused, { residentOn: workerId(0) });
  paused.response.finishedMs = 0;
  const { sessions } = dividing(arrivalOf(buffer), 10);
  const keptMs = (more: Partial<Slot>): number => {
    const slots = [
      slot(0, { inFlight: 1, rowMs: 1, baseRequests: 4, running: [running], ...more }),
    ];
    const times = Array.from({ length: 1_000 }, (_, ms) => ms);
    return times.find((ms) => !sessions.stays(paused, slots, ms)) ?? Number.POSITIVE_INFINITY;
  };
  // A request that runs with 100 tokens, in steps of 4 rows and one for each request: 100 rows, times 1 + 2 / 4.
  expect(keptMs({ runningTokens: 100 })).toBe(150);
  expect(keptMs({ runningTokens: 200, inFlight: 3 })).toBe(400);
  expect(keptMs({ runningTokens: 100, baseRequests: 100 })).toBe(102);
  expect(keptMs({ runningTokens: 100, sharesKv: true })).toBe(5);
  expect(keptMs({ runningTokens: 5_000, rowMs: Number.NaN })).toBe(500);
  expect(keptMs({ runningTokens: 100, inFlight: 0 })).toBe(0);
});

/** Four requests that run without an end of their chunks, two on each worker, with `made` tokens each. */
function endless(made: number) {
  const buffer = bufferOf(2, 4);
  const scheduler = new Scheduler(arrivalOf(buffer), {
    kind: "divided",
    chunks: new ChunkLength(null),
  });
  const requests = [0, 1, 2, 3].map((sample) => member(buffer, 0, sample));
  for (const request of requests) scheduler.enqueue(request);
  const room = { slots: 2, aheadTokens: 10 };
  const commands = scheduler.schedule([slot(0, room), slot(1, room)]);
  for (const command of commands) {
    if (command.kind !== "dispatch") throw new Error(command.kind);
    const { request, workerId } = command;
    put(request, { status: "running", workerId, residentOn: workerId });
    request.response.openChunk(workerId, weightEpoch(0));
    generate(request, made);
  }
  const kinds = (slots: Slot[]) => scheduler.schedule(slots).map(({ kind }) => kind);
  const full = { ...room, inFlight: 2 };
  return { buffer, scheduler, commands, kinds, full, room };
}

test("chunks: one that begins while nobody waits has no end, until somebody waits", () => {
  const { buffer, scheduler, commands, kinds, full } = endless(64);
  expect(commands.map((one) => one.kind === "dispatch" && one.chunkTokens)).toEqual(
    new Array(4).fill(1_000),
  );
  expect(kinds([slot(0, full), slot(1, full)])).toEqual([]);
  scheduler.enqueue(member(buffer, 1, 0));
  expect(kinds([slot(0, full), slot(1, full)])).toEqual(["end", "end", "end", "end"]);
});

test("chunks: one without an end that has all its tokens is left to its engine, whoever waits", () => {
  const { buffer, scheduler, kinds, full } = endless(1_000);
  scheduler.enqueue(member(buffer, 1, 0));
  expect(kinds([slot(0, full), slot(1, full)])).toEqual([]);
});

test("chunks: one without an end is no shorter than others, whoever waits", () => {
  const { buffer, scheduler, kinds, full } = endless(63);
  scheduler.enqueue(member(buffer, 1, 0));
  expect(kinds([slot(0, full), slot(1, full)])).toEqual([]);
});

test("chunks: one without an end is over where another worker has less to do", () => {
  const { kinds, full, room } = endless(64);
  expect(kinds([slot(0, full), slot(1, { ...room, inFlight: 1 })])).toEqual([]);
  expect(kinds([slot(0, full), slot(1, room)])).toEqual(["end"]);
});
