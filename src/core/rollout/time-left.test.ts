// The time left by what is known of lengths, and by the speed of what runs.

import { expect, test } from "bun:test";
import recorded from "../../../test/fixtures/recorded-iterations.json";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { groupId } from "../base/ids.ts";
import { RequestBuffer } from "../request/buffer.ts";
import { ETA_FACTOR, TimeLeft } from "./time-left.ts";

const SPEED = { running: 2, tokensPerS: 20 };
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

function secondsOf(requests: ReturnType<typeof groupsOf>, speed = SPEED): number | null {
  const left = new TimeLeft();
  for (const request of requests) left.finished(request);
  return left.seconds(requests, unknown, speed);
}

test("time left: siblings of ended responses become as long, and the group's scale grows with one that goes on", () => {
  const one = secondsOf(groupsOf([100, 100, 100, 100, 100, 100], true));
  // Six responses of 100 tokens at 20 tokens a second.
  expect(one).toBeCloseTo((6 * 100) / 20, 5);
  expect(secondsOf(groupsOf([200, 200, 200, 200, 200, 200], true))).toBeCloseTo(60, 5);
  const requests = groupsOf([100], true);
  requests[1]?.response.append(0, new Int32Array(100), new Float32Array(100));
  // Two squares for one that has ended; alone it gets 10 tokens a second.
  expect(secondsOf(requests)).toBeCloseTo((Math.SQRT2 * 100 - 100) / 10, 5);
});

test("time left: a group of which nothing is known is like the others, and no longer than it may be", () => {
  const lengths = new Array<number>(8).fill(100);
  const known = secondsOf(groupsOf(lengths, true)) ?? 0;
  const more = secondsOf(groupsOf([...lengths, null, null, null, null], true)) ?? 0;
  expect(more).toBeCloseTo(known + (8 * 100) / 20, 5);
  const long = groupsOf([400], true);
  long[1]?.response.append(0, new Int32Array(490), new Float32Array(490));
  expect(secondsOf(long)).toBeCloseTo((500 - 490) / 10, 5);
});

test("time left: the longest response ends last, however many run beside it", () => {
  const requests = groupsOf([10, 10, 10, 300], true);
  expect(secondsOf(requests, { running: 4, tokensPerS: 40 })).toBeGreaterThan(15);
});

test("time left: none before a response has ended, and none while nothing runs", () => {
  expect(secondsOf(groupsOf([40], false))).toBeNull();
  const requests = groupsOf([40], true);
  expect(secondsOf(requests, { running: 0, tokensPerS: 0 })).toBeNull();
  // An earlier epoch has shown how long responses are.
  const fresh = groupsOf([null], false);
  expect(new TimeLeft().seconds(fresh, () => 100, SPEED)).toBeGreaterThan(5);
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

/** Ratios of the estimates from a fifth of the time on to the truth. */
function ratiosIn(left: TimeLeft, iteration: Recorded): number[] {
  const { buffer, requests } = requestsOf(iteration);
  const ratios: number[] = [];
  left.clear();
  for (const [at, running, tokensPerS, longer, ended] of iteration.looks) {
    for (let i = 0; i < longer.length; i += 2) {
      const response = requests[longer[i] ?? 0]?.response;
      const more = (longer[i + 1] ?? 0) - (response?.length ?? 0);
      response?.append(response.length, new Int32Array(more), new Float32Array(more));
    }
    for (const request of ended.flatMap((i) => requests[i] ?? [])) {
      request.response.finish = "stop";
      left.finished(request);
      buffer.move(request, "finished");
      const { group } = request;
      if (group.finished === group.requests.length) buffer.remove(group);
    }
    const seconds = left.seconds(buffer.requests, unknown, { running, tokensPerS });
    const isCounted = at >= iteration.seconds / 5 && at <= 0.95 * iteration.seconds;
    if (seconds !== null && isCounted) ratios.push(seconds / (iteration.seconds - at));
  }
  return ratios;
}

test("time left: four of five estimates in ten recorded iterations are within the factor, half within 1.7", () => {
  const left = new TimeLeft();
  const iterations = recorded as unknown as Recorded[];
  const factors = iterations
    .flatMap((iteration) => ratiosIn(left, iteration))
    .map((ratio) => Math.max(ratio, 1 / ratio))
    .sort((a, b) => a - b);
  const [middle, most] = [0.5, 0.8].map((share) => factors[Math.floor(share * factors.length)]);
  if (process.env.FIGURES === "1") console.log(middle, most);
  expect(factors.length).toBeGreaterThan(70);
  expect(middle).toBeLessThan(1.7);
  expect(most).toBeLessThan(1.02 * ETA_FACTOR);
});
