// The registry's deltas, applied by offset, bring every worker's logs up to the responses.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { ManualClock } from "../../../test/suite/manual-clock.ts";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { present } from "../base/assert.ts";
import { groupId, workerId } from "../base/ids.ts";
import { type GroupSpec, RequestBuffer, type RolloutRequest } from "../request/buffer.ts";
import type { GroupUpdate } from "./drafter.ts";
import { type DraftMode, DraftRegistry } from "./registry.ts";

const WORKERS = 3;

/** One worker's logs: group -> sample -> tokens. Refuses gaps, skips repeats. */
class Logs {
  readonly groups = new Map<string, Map<number, number[]>>();

  apply(update: GroupUpdate): void {
    if (update.kind === "register_group") {
      if (!this.groups.has(update.groupId)) this.groups.set(update.groupId, new Map());
    } else if (update.kind === "drop_group") {
      this.groups.delete(update.groupId);
    } else {
      this.append(update.groupId, update);
    }
  }

  append(id: string, delta: { sampleIndex: number; offset: number; tokens: Int32Array }): void {
    const group = present(this.groups.get(id), "a delta comes after its registration");
    const log = group.get(delta.sampleIndex) ?? [];
    group.set(delta.sampleIndex, log);
    if (delta.offset > log.length) throw new Error("a delta leaves a gap");
    log.push(...delta.tokens.subarray(log.length - delta.offset));
  }
}

const actions = fc.array(
  fc.record({
    request: fc.nat({ max: 5 }),
    worker: fc.nat({ max: WORKERS - 1 }),
    kind: fc.constantFrom(
      "run" as const,
      "run" as const,
      "forget" as const,
      "gap" as const,
      "restart" as const,
    ),
  }),
  { maxLength: 60 },
);

/** Every group's prompt is its past, too. */
function registryOf(
  post: (workerId: number, update: GroupUpdate) => void,
  clock = new ManualClock(),
  mode: DraftMode = "grouped",
): DraftRegistry {
  return new DraftRegistry({ mode, clock, post, past: ({ prompt }) => [prompt] });
}

function groupOf(index: number, size: number): GroupSpec {
  const sampling = samplingOf({ tokensMax: 1000 });
  return { groupId: groupId(`g${index}`), prompt: Int32Array.of(7), size, sampling };
}

test("registry: replicas converge to the responses", () => {
  fc.assert(
    fc.property(actions, (steps) => {
      const buffer = new RequestBuffer();
      for (const i of [0, 1]) buffer.add(groupOf(i, 3));
      const requests = [...buffer.requests];
      const clock = new ManualClock();
      const begun = new Map<RolloutRequest, number>();
      const logs = Array.from({ length: WORKERS }, () => new Logs());
      const registry = registryOf((w, update) => logs[w]?.apply(update), clock);
      for (const step of steps) {
        const request = present(requests[step.request], "six requests");
        const replica = present(logs[step.worker], "three workers");
        const source = present(registry.source(request), "drafting is on");
        const { group } = request;
        const column = () => new Map(registry.responses(group)).get(source.sampleIndex);
        expect(column()).toBe(request.response.column);
        if (step.kind === "restart") {
          request.response.restart();
          registry.restarted(request);
          begun.set(request, (begun.get(request) ?? 0) + 1);
          expect(column()).toBeUndefined();
          expect(registry.source(request)).not.toEqual(source);
        } else if (step.kind === "forget") {
          registry.forget(workerId(step.worker));
          replica.groups.clear();
        } else if (step.kind === "gap") {
          const log = replica.groups.get(source.groupId)?.get(source.sampleIndex);
          if (log === undefined) continue;
          log.length = Math.floor(log.length / 2);
          registry.missing(group, source.sampleIndex, workerId(step.worker), log.length);
        } else {
          registry.begin(request, workerId(step.worker));
          const offset = request.response.length;
          // Other tokens each time that it begins.
          const first = 1000 * (begun.get(request) ?? 0) + offset;
          const tokens = Int32Array.of(first, first + 1);
          request.response.append(offset, tokens, new Float32Array(2));
          replica.append(source.groupId, { sampleIndex: source.sampleIndex, offset, tokens });
          registry.generated(request);
        }
      }
      clock.advance(50);
      registry.post();
      for (const [w, replica] of logs.entries()) {
        for (const request of buffer.requests) {
          const source = present(registry.source(request), "drafting is on");
          const group = replica.groups.get(source.groupId);
          if (group === undefined) continue;
          const log = group.get(source.sampleIndex) ?? [];
          expect([w, log]).toEqual([w, [...request.response.tokens()]]);
        }
      }
      for (const i of [0, 1]) {
        const group = present(buffer.group(groupId(`g${i}`)), "two groups");
        registry.retired(group);
      }
      expect(logs.every((replica) => replica.groups.size === 0)).toBe(true);
    }),
    { numRuns: 500 },
  );
});

test("registry, off: has no source and sends nothing", () => {
  const buffer = new RequestBuffer();
  const group = buffer.add(groupOf(0, 1));
  const request = present(group.requests[0], "one request");
  const posted: unknown[] = [];
  const registry = registryOf((_, update) => posted.push(update), new ManualClock(), "off");
  expect(registry.source(request)).toBeNull();
  registry.begin(request, workerId(0));
  registry.post();
  expect(posted).toEqual([]);
});

test("registry: the sequence of a session's turn is what is new and the response; the turns before are others", () => {
  const buffer = new RequestBuffer();
  const group = buffer.open(groupId("g"), Int32Array.of(7));
  const wanted = {
    sampling: samplingOf({ tokensMax: 9 }),
    draw: { hi: 0, lo: 0 },
    divisible: true,
    priority: 0,
  };
  const first = buffer.join(group, { ...wanted, turn: { prompt: group.prompt, leadTokens: 0 } });
  const turn = { prompt: Int32Array.of(7, 8, 1, 2), leadTokens: 2 };
  const second = buffer.join(group, { ...wanted, turn });
  const registry = registryOf(() => {});
  expect(registry.source(first)).toEqual({ groupId: groupId("g"), sampleIndex: 0 });
  const at = { groupId: groupId("g"), sampleIndex: 1 };
  expect(registry.source(second)).toEqual({ ...at, turn: { promptTokens: 1, leadTokens: 2 } });
  const [, [, column] = []] = registry.responses(group);
  expect(column?.view(0)).toEqual(Int32Array.of(1, 2));
});

test("registry: a worker gets the past of a group's prompt with the group, once", () => {
  const buffer = new RequestBuffer();
  const { requests } = buffer.add(groupOf(0, 2));
  const posted: unknown[] = [];
  const registry = registryOf((_, update) => posted.push(update));
  for (const request of requests) registry.begin(request, workerId(0));
  const prompt = Int32Array.of(7);
  expect(posted).toEqual([
    { kind: "register_group", groupId: groupId("g0"), prompt, past: [prompt] },
  ]);
});

test("registry: a response beyond those that a replica has room for is neither sent nor drafted for", () => {
  const buffer = new RequestBuffer();
  const group = buffer.add(groupOf(0, 4098));
  const at = (index: number) => present(group.requests[index], "the group has so many");
  const beyond = at(4096);
  const posted: string[] = [];
  const clock = new ManualClock();
  const grouped = registryOf((_, { kind }) => posted.push(kind), clock);
  const sources = group.requests.map((request) => grouped.source(request));
  expect(sources[4095]).toEqual({ groupId: groupId("g0"), sampleIndex: 4095 });
  expect(sources[4096]).toBe(null);
  for (const w of [0, 1].map(workerId)) {
    grouped.begin(beyond, w);
    expect(posted.length).toBe(w);
    grouped.begin(at(0), w);
  }
  beyond.response.append(0, Int32Array.of(1, 2), new Float32Array(2));
  grouped.generated(beyond);
  clock.advance(50);
  grouped.post();
  expect(posted).toEqual(["register_group", "register_group"]);
  grouped.retired(group);
  expect(posted.slice(2)).toEqual(["drop_group", "drop_group"]);
});

test("registry: tokens go out in rounds, of so many requests in a turn that no turn is long", () => {
  const buffer = new RequestBuffer();
  const { requests } = buffer.add(groupOf(0, 2000));
  const clock = new ManualClock();
  let deltas = 0;
  const registry = registryOf((_, { kind }) => {
    if (kind === "delta") deltas += 1;
  }, clock);
  const turn = () => {
    deltas = 0;
    registry.post();
    return deltas;
  };
  for (const [i, request] of requests.entries()) {
    registry.begin(request, workerId(i % 2));
    request.response.append(0, Int32Array.of(1), new Float32Array(1));
    registry.generated(request);
  }
  expect(Array.from({ length: 9 }, turn)).toEqual([...Array(7).fill(256), 208, 0]);
  for (const request of requests) {
    request.response.append(1, Int32Array.of(2), new Float32Array(1));
    registry.generated(request);
  }
  // 2,000 requests at 20 a millisecond.
  clock.advance(99);
  expect(turn()).toBe(0);
  clock.advance(1);
  expect(turn()).toBe(256);
});
