// The time left by what is known of lengths, and by the speed of what runs.

import { expect, test } from "bun:test";
import recorded from "../../../test/fixtures/recorded-iterations.json";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { groupId } from "../base/ids.ts";
import { RequestBuffer } from "../request/buffer.ts";
import { TimeLeft } from "./time-left.ts";

const SPEED = { running: 2, tokensPerS: 20, engines: 1, baseRequests: Number.MAX_SAFE_INTEGER };
const unknown = () => null;

/** Groups of two requests, the first of which has ended with `lengths[i]` tokens, or runs; null: nothing has begun. */
function groupsOf(lengths: readonly (number | null)[], isEnded: boolean) {
  const buffer = new RequestBuffer();
  for (const [i, length] of lengths.entries()) {
    const prompt = Int32Array.of(1);
    const wanted = { prompt, size: 2, sampling: samplingOf({ tokensMax: 500 }) };
    const [first] = buffer.add({ groupId: groupId(`g${i}`), ...wanted }).requests;
    if (first === undefined || length === null) continue;
    first.response.append(0, new Int32Array(length), new Float32Array(length));
    if (!isEnded) continue;
    first.response.finish = "stop";
    buffer.move(first, "finished");
  }
  return [...buffer.requests];
}

const secondsOf = (requests: ReturnType<typeof groupsOf>, speed = SPEED) =>
  new TimeLeft().seconds(requests, unknown, speed);

test("time left: siblings of ended responses are about as long", () => {
  const seconds = secondsOf(groupsOf([100, 100, 100, 100, 100, 100], true)) ?? 0;
  // Six responses of about 100 tokens at 20 tokens a second, the longest of them somewhat more.
  expect(seconds).toBeGreaterThan(20);
  expect(seconds).toBeLessThan(60);
  expect(secondsOf(groupsOf([200, 200, 200, 200, 200, 200], true))).toBeGreaterThan(1.5 * seconds);
});

test("time left: a group of which nothing is known is like the others, and no longer than it may be", () => {
  const lengths = new Array<number>(8).fill(100);
  const known = secondsOf(groupsOf(lengths, true)) ?? 0;
  const more = secondsOf(groupsOf([...lengths, null, null, null, null], true)) ?? 0;
  expect(more).toBeGreaterThan(1.5 * known);
  // Eight responses at 20 tokens a second together.
  expect(more).toBeLessThan(known + (8 * 500) / 20);
});

test("time left: steps of fewer requests are shorter where requests are most of a step", () => {
  const requests = groupsOf([100, 100, 300], true);
  const speed = { ...SPEED, running: 3 };
  expect(secondsOf(requests, { ...speed, baseRequests: 1 })).toBeLessThan(
    secondsOf(requests, speed) ?? 0,
  );
});

test("time left: none before a response has ended, and none while nothing runs", () => {
  expect(secondsOf(groupsOf([40], false))).toBeNull();
  const requests = groupsOf([40], true);
  expect(secondsOf(requests, { ...SPEED, running: 0, tokensPerS: 0 })).toBeNull();
  // An earlier epoch has shown how long responses are.
  const fresh = groupsOf([null], false);
  expect(new TimeLeft().seconds(fresh, () => 100, SPEED)).toBeGreaterThan(5);
});

test("time left: of very many complete groups the last ones count", () => {
  const [short] = groupsOf([10], true);
  const [long] = groupsOf([400], true);
  if (short === undefined || long === undefined) throw new Error("groups have requests");
  const left = new TimeLeft();
  for (let i = 0; i < 40_000; i += 1) left.completed(short.group);
  for (let i = 0; i < 40_000; i += 1) left.completed(long.group);
  // As if the earlier ones had never been.
  const seconds = left.seconds(groupsOf([null], true), unknown, SPEED) ?? 0;
  const alone = new TimeLeft();
  for (let i = 0; i < 40_000; i += 1) alone.completed(long.group);
  expect(seconds).toBe(alone.seconds(groupsOf([null], true), unknown, SPEED) ?? 0);
});

/** An iteration of `foretoken serve --llama 2` beside other work, looked at every three seconds. */
interface Recorded {
  /** The group of each response. */
  readonly groups: number[];
  readonly tokens_max: number;
  readonly seconds: number;
  /** Time, running, tokens a second; what has become longer, as pairs of response and length; what has ended. */
  readonly looks: [number, number, number, number[], number[]][];
}

/** Requests of the iteration, in the order of its responses. */
function requestsOf({ groups, tokens_max: tokensMax }: Recorded) {
  const buffer = new RequestBuffer();
  const made = Map.groupBy(groups.keys(), (i) => groups[i] ?? 0);
  const all = [...made].flatMap(([name, places]) => {
    const wanted = { prompt: Int32Array.of(1), size: places.length };
    const sampling = samplingOf({ tokensMax });
    const { requests } = buffer.add({ groupId: groupId(`g${name}`), ...wanted, sampling });
    return requests.map((request, i) => [places[i] ?? 0, request] as const);
  });
  return { buffer, requests: all.sort(([a], [b]) => a - b).map(([, request]) => request) };
}

/** The share of ranges from a fifth of the time on that hold the end. */
function heldIn(left: TimeLeft, iteration: Recorded): number {
  const { buffer, requests } = requestsOf(iteration);
  const held: boolean[] = [];
  left.clear();
  for (const [at, running, tokensPerS, longer, ended] of iteration.looks) {
    for (let i = 0; i < longer.length; i += 2) {
      const response = requests[longer[i] ?? 0]?.response;
      const more = (longer[i + 1] ?? 0) - (response?.length ?? 0);
      response?.append(response.length, new Int32Array(more), new Float32Array(more));
    }
    for (const request of ended.flatMap((i) => requests[i] ?? [])) {
      request.response.finish = "stop";
      buffer.move(request, "finished");
      const { group } = request;
      if (group.finished < group.requests.length) continue;
      left.completed(group);
      buffer.remove(group);
    }
    const speed = { running, tokensPerS, engines: 2, baseRequests: 4 };
    const seconds = left.seconds(buffer.requests, unknown, speed);
    if (seconds === null || at < iteration.seconds / 5) continue;
    const truth = iteration.seconds - at;
    held.push(seconds / left.spread <= truth && truth <= seconds * left.spread);
  }
  return held.filter(Boolean).length / held.length;
}

test("time left: the ranges of ten recorded iterations hold their ends in four of five cases", () => {
  const left = new TimeLeft();
  const shares = (recorded as unknown as Recorded[]).map((iteration) => {
    const share = heldIn(left, iteration);
    left.judged(share);
    return share;
  });
  const mean = shares.reduce((sum, share) => sum + share, 0) / shares.length;
  if (process.env.FIGURES === "1") console.log(shares.map((share) => share.toFixed(2)).join(" "));
  expect(shares).toHaveLength(10);
  expect(mean).toBeGreaterThan(0.74);
  expect(mean).toBeLessThan(0.9);
});

test("time left: ranges grow while they hold too little, and shrink while they hold more than they say", () => {
  const left = new TimeLeft();
  const first = left.spread;
  left.judged(0.1);
  expect(left.spread).toBeGreaterThan(first);
  for (let i = 0; i < 100; i += 1) left.judged(0);
  expect(left.spread).toBeLessThan(25);
  for (let i = 0; i < 100; i += 1) left.judged(1);
  expect(left.spread).toBeLessThan(1.1);
  expect(left.spread).toBeGreaterThan(1);
});
