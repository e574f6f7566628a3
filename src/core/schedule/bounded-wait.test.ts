// Clients that come again and again with groups that the policy prefers: how many of those go before one that it does
// not. And a synchronous iteration, in which no request goes before its turn.

import { expect, test } from "bun:test";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { present } from "../base/assert.ts";
import { groupId, workerId } from "../base/ids.ts";
import { ContextManager } from "../context/context.ts";
import { type Group, RequestBuffer, type RolloutRequest, type Wanted } from "../request/buffer.ts";
import { drawKey } from "../request/request.ts";
import { loadCore } from "../wasm/load.ts";
import { ROUNDS } from "./bounded-wait.ts";
import { ChunkLength } from "./chunk-length.ts";
import type { Slot } from "./placement.ts";
import { isDivided, POLICY_NAMES, type PolicyName, schedulerFor } from "./policies.ts";
import type { Scheduler } from "./scheduler.ts";

const SLOTS = 8;
const CLIENTS = 12;
const GROUP = 4;
const CHUNK = 4;

class Bed {
  readonly buffer = new RequestBuffer();
  readonly context = new ContextManager();
  readonly scheduler: Scheduler;
  readonly running: RolloutRequest[] = [];
  /** Requests in the order in which they ended. */
  readonly ended: RolloutRequest[] = [];
  readonly #kvTokens: number;
  #groups = 0;

  constructor(policy: PolicyName, kvTokens = 1e6) {
    this.#kvTokens = kvTokens;
    const { buffer, context } = this;
    const chunks = new ChunkLength(CHUNK);
    this.scheduler = schedulerFor(policy, { buffer, context, chunks, core: loadCore() });
  }

  come(tokensMax: number, size = GROUP, more: Partial<Wanted> = {}): RolloutRequest[] {
    this.#groups += 1;
    const group = this.buffer.open(groupId(`g${this.#groups}`), Int32Array.of(1));
    return Array.from({ length: size }, () => this.join(group, tokensMax, more));
  }

  join(group: Group, tokensMax: number, more: Partial<Wanted>, from?: RolloutRequest) {
    const draw = drawKey(0, group.groupId, group.requests.length);
    const sampling = samplingOf({ tokensMax });
    const wanted = { sampling, draw, divisible: true, priority: 0, ...more };
    const request = this.buffer.join(group, wanted);
    if (from !== undefined) this.context.continued(request, from);
    this.context.joined(request);
    this.scheduler.refresh(group);
    this.scheduler.enqueue(request);
    return request;
  }

  slot(): Slot {
    const kvTokens = this.#kvTokens;
    return {
      workerId: workerId(0),
      slots: SLOTS,
      ahead: 0,
      inFlight: this.running.length,
      kvTokens,
      kvTokensFree: kvTokens,
      hasSuspect: false,
      isReserved: false,
      pace: 1,
      running: [],
      baseRequests: 0,
      rowMs: Number.NaN,
      sharesKv: false,
      kvTokensLeaving: 0,
      aheadTokens: Number.POSITIVE_INFINITY,
      blockTokens: 1,
    };
  }

  /** Chunks begin while there is room, and the one that has run longest ends. */
  turn(): RolloutRequest | null {
    for (const command of this.scheduler.schedule([this.slot()])) {
      if (command.kind !== "dispatch") continue;
      this.buffer.move(command.request, "moving");
      this.buffer.move(command.request, "running");
      this.running.push(command.request);
    }
    const request = present(this.running.shift(), "something runs");
    const { response, spec } = request;
    const left = spec.sampling.tokensMax - response.length;
    const tokens = Math.min(CHUNK, left);
    response.append(response.length, new Int32Array(tokens), new Float32Array(tokens));
    if (tokens < left) {
      this.context.progressed(request);
      this.buffer.move(request, "waiting");
      this.scheduler.enqueue(request);
      return null;
    }
    response.finish = "length";
    this.buffer.move(request, "finished");
    this.context.finished(request);
    this.scheduler.refresh(request.group);
    this.ended.push(request);
    return request;
  }
}

const CASES: { policy: PolicyName; waits: number; others: number; size: number }[] = [
  { policy: "seer", waits: 2, others: 9, size: GROUP },
  { policy: "seer", waits: 40, others: 3, size: 1 },
  { policy: "foretoken", waits: 40, others: 3, size: GROUP },
];

for (const { policy, waits, others, size } of CASES) {
  test(`bounded wait: ${policy}: groups of ${size} with ${waits} tokens end, however many of ${others} come`, () => {
    const bed = new Bed(policy);
    for (let i = 1; i < CLIENTS; i += 1) bed.come(others, size);
    const slow = bed.come(waits, size);
    const open = CLIENTS * size;
    for (let i = 0; i < 80 * open && slow.some(({ status }) => status !== "finished"); i += 1) {
      const request = bed.turn();
      if (request === null || slow.includes(request)) continue;
      if (request.group.finished === size) bed.come(others, size);
    }
    expect(slow.every(({ status }) => status === "finished")).toBe(true);
    // Then each of its chunks takes as long as the others run beside it.
    const meanwhile = Math.ceil(waits / CHUNK) * SLOTS;
    expect(bed.ended.length).toBeLessThanOrEqual((ROUNDS + 1) * open + meanwhile);
  });
}

test.each(POLICY_NAMES.filter(isDivided))(
  "bounded wait: %s: no priority and no session goes first for ever",
  (policy) => {
    const first = new Bed(policy);
    for (let i = 0; i < SLOTS; i += 1) first.come(1, 1, { priority: -1 });
    const [plain] = first.come(1, 1);
    while (plain?.status !== "finished" && first.ended.length < 9 * SLOTS) {
      if (first.turn() !== null) first.come(1, 1, { priority: -1 });
    }
    expect(plain?.status).toBe("finished");

    const second = new Bed(policy);
    const begins = { turn: { prompt: Int32Array.of(1), leadTokens: 0 } };
    const goesOn = { turn: { prompt: Int32Array.of(1, 2), leadTokens: 1 } };
    second.come(1, SLOTS, begins);
    const turns: RolloutRequest[] = [];
    for (const [other] of [0, 1].map(() => second.come(1, 1))) {
      while (other?.status !== "finished" && second.ended.length < 512 * SLOTS) {
        const turn = second.turn();
        if (turn?.spec.keepsKv !== true) continue;
        turns.push(second.join(turn.group, 1, goesOn, turn));
      }
      expect(other?.status).toBe("finished");
    }
  },
);

test("bounded wait: in a synchronous iteration the order is the policy's", () => {
  const bed = new Bed("seer");
  const lengths = Array.from({ length: 40 }, (_, i) => 1 + ((i * 7) % 40));
  const groups = lengths.map((length) => bed.come(length));
  while (bed.ended.length < lengths.length * GROUP) bed.turn();
  expect(bed.ended.length).toBe(groups.flat().length);
  expect(bed.ended.length).toBeLessThan(ROUNDS * bed.context.turnover.openMax);
});

const SHORT = { kvTokens: 1000, kvTokensFree: 500, sharesKv: true };

test.each([
  { name: "KV is short, and comes back", ...SHORT, isFresh: true },
  { name: "there is more KV than slots", ...SHORT, kvTokensFree: 501, isFresh: false },
  { name: "KV that leaves is lost", ...SHORT, sharesKv: false, isFresh: false },
  { name: "what has begun is large", ...SHORT, kvTokens: 64, kvTokensFree: 32, isFresh: false },
])("foretoken: the fewest tokens go first, and else who came first: $name", (at) => {
  const { name: _, isFresh, ...kv } = at;
  const bed = new Bed("foretoken", at.kvTokens);
  const [begun] = bed.come(40, 1);
  bed.turn();
  const [fresh] = bed.come(40, 1);
  const [command] = bed.scheduler.schedule([{ ...bed.slot(), slots: 2, inFlight: 1, ...kv }]);
  const request = present(isFresh ? fresh : begun, "it came");
  expect(command).toMatchObject({ kind: "dispatch", request });
});
