// Trajectories against what the model really read and drew, for agents that go on, go back, edit and drop parts of what
// was said; and what is made again of the events.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { Bed } from "../../../test/suite/sidecar-bed.ts";
import { weightEpoch } from "../../core/base/ids.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";
import { encodeEvent, eventsIn } from "./event-frame.ts";
import { Trajectories, type TrajectoryEvent } from "./trajectories.ts";
import type { Trajectory } from "./trajectory.ts";

const PROMPT = [1, 2, 3, 4];

/** The next step of an agent: a share of an earlier turn's tokens, and tokens of its own behind them. */
const move = fc.record({
  back: fc.nat(3),
  keeps: fc.oneof(
    { weight: 3, arbitrary: fc.constant(1) },
    fc.double({ min: 0, max: 1, noNaN: true }),
  ),
  news: fc.array(fc.integer({ min: 5, max: 9 }), { maxLength: 4 }),
  length: fc.integer({ min: 1, max: 9 }),
  isAborted: fc.boolean(),
  advances: fc.boolean(),
});

interface Drawn {
  readonly text: number[];
  readonly output: number[];
  readonly logprobs: number[];
}

function recorder(bed: Bed, events: TrajectoryEvent[], bytesMax = 2 ** 30): Trajectories {
  return new Trajectories({
    bytesMax,
    msMax: 1_000,
    nowMs: () => bed.clock.nowMs(),
    version: (epoch) => `v${epoch}`,
    iteration: () => 1,
    keep: (event) => events.push(event),
  });
}

function ended(trajectories: Trajectories, request: RolloutRequest): void {
  const { length, finish } = request.response;
  trajectories.ended(request, { tokens: length, finish, toolCalls: [] });
}

/** Every output once, by its mask, with the logprobs that it was drawn with. */
function outputsIn(trajectory: Trajectory): { output: number[]; logprobs: number[] }[] {
  const found: { turn: number; output: number[]; logprobs: number[] }[] = [];
  for (let index = 0; index < trajectory.segmentCount; index += 1) {
    const { tokenIds, lossMask, logprobs, spans } = trajectory.segment(index);
    expect(logprobs.every((logprob, i) => Number.isNaN(logprob) === (lossMask[i] === 0))).toBe(
      true,
    );
    const masked = lossMask.reduce((sum, bit) => sum + bit, 0);
    expect(spans.reduce((sum, { from, to }) => sum + to - from, 0)).toBe(masked);
    for (const { turn, from, to } of spans) {
      const one = found.find((other) => other.turn === turn) ?? { turn, output: [], logprobs: [] };
      if (!found.includes(one)) found.push(one);
      one.output.push(...tokenIds.subarray(from, to));
      one.logprobs.push(...logprobs.subarray(from, to));
    }
  }
  return found
    .sort((a, b) => a.turn - b.turn)
    .map(({ output, logprobs }) => ({ output, logprobs }));
}

test("trajectory: whatever an agent keeps of its turns, each text is what the model read and drew", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(move, { minLength: 1, maxLength: 8 }), async (moves) => {
      let length = 1;
      const bed = new Bed({ workers: 1, lengthOf: () => length });
      const events: TrajectoryEvent[] = [];
      const trajectories = recorder(bed, events);
      const drawn: Drawn[] = [];
      const open = new Set<string>();
      let epoch = 0;
      for (const { back, keeps, news, length: wanted, isAborted, advances } of moves) {
        const before = drawn.at(-1 - back)?.text ?? PROMPT;
        const prompt = [
          ...before.slice(0, Math.max(1, Math.round(keeps * before.length))),
          ...news,
        ];
        length = wanted;
        const [request] = bed.generate(prompt, 1, { session: "a" });
        if (request === undefined) throw new Error("one request");
        trajectories.began({ name: "a", group: null }, [request]);
        if (isAborted) bed.sidecar.rollout.end(request, "abort");
        await bed.finish();
        ended(trajectories, request);
        if (isAborted) open.add(prompt.join());
        else {
          open.delete(prompt.join());
          const output = [...request.response.tokens()];
          drawn.push({
            text: [...prompt, ...output],
            output,
            logprobs: [...request.response.logprobs()],
          });
        }
        if (!advances) continue;
        epoch += 1;
        bed.sidecar.advance(weightEpoch(epoch));
      }
      const again = recorder(bed, []);
      const frames = Buffer.concat(events.map(encodeEvent));
      again.restore([...eventsIn(frames), { kind: "stopped" }]);
      for (const one of [trajectories, again]) {
        const [session] = one.sessions(() => true);
        if (session === undefined) throw new Error("one session");
        const { trajectory, flaws } = session;
        expect(flaws).toHaveLength(open.size);
        expect(trajectory.turns.map((turn) => [...trajectory.textOf(turn)])).toEqual(
          drawn.map(({ text }) => text),
        );
        expect(outputsIn(trajectory)).toEqual(
          drawn.map(({ output, logprobs }) => ({ output, logprobs })),
        );
      }
    }),
    { numRuns: 150 },
  );
});

test("trajectories: the bound takes whole sessions, the least recently used first, and says so of what follows", async () => {
  const bed = new Bed({ workers: 1, lengthOf: () => 20 });
  const events: TrajectoryEvent[] = [];
  const trajectories = recorder(bed, events, 8_000);
  const turnOf = async (name: string) => {
    const [request] = bed.generate(PROMPT, 1, { session: name });
    if (request === undefined) throw new Error("one request");
    trajectories.began({ name, group: null }, [request]);
    await bed.finish();
    ended(trajectories, request);
  };
  for (const name of ["a", "b", "c", "a", "d", "e"]) await turnOf(name);
  expect(trajectories.kept.bytes).toBeLessThan(8_000);
  const names = () => [...trajectories.sessions(() => true)].map(({ name }) => name);
  expect(names()).not.toContain("b");
  expect(names()).toContain("a");
  expect(trajectories.whyDropped("b")).toContain("more than 8000 bytes");
  expect(trajectories.whyDropped("a")).toBeNull();
  await turnOf("b");
  const [again] = trajectories.sessions(({ name }) => name === "b");
  expect(again?.flaws).toEqual([expect.stringContaining("what came before is gone")]);
  const restored = recorder(bed, [], 8_000);
  restored.restore([...events, { kind: "stopped" }]);
  expect([...restored.sessions(() => true)].map(({ name }) => name)).toEqual(names());
  expect(restored.kept).toEqual(trajectories.kept);
});

test("trajectories: what a killed process, or the log's bound, has taken is named in the next one, and in those after it", async () => {
  const bed = new Bed({ workers: 1, lengthOf: () => 20 });
  const events: TrajectoryEvent[] = [];
  const trajectories = recorder(bed, events);
  const begin = (name: string) => {
    const [request] = bed.generate(PROMPT, 1, { session: name });
    if (request === undefined) throw new Error("one request");
    trajectories.began({ name, group: null }, [request]);
    return request;
  };
  for (const name of ["over", "open", "cut", "cut"]) {
    const request = begin(name);
    await bed.finish();
    ended(trajectories, request);
  }
  trajectories.end("over");
  begin("ran");
  const kept: TrajectoryEvent[] = [];
  const killed = recorder(bed, kept);
  const firstOfCut = events.findIndex(({ kind, name }) => kind === "ended" && name === "cut");
  killed.restore(events.filter((_, i) => i !== firstOfCut));
  const flawsOf = (of: Trajectories) =>
    Object.fromEntries([...of.sessions(() => true)].map(({ name, flaws }) => [name, flaws]));
  const named = {
    over: [],
    open: [expect.stringContaining("did not stop in order")],
    ran: [expect.stringContaining("did not stop"), expect.stringContaining("while response")],
  };
  expect(flawsOf(killed)).toEqual(named);
  expect(killed.whyDropped("cut")).toContain("its beginning is gone");
  const later = recorder(bed, []);
  later.restore([...events.filter((_, i) => i !== firstOfCut), ...kept, { kind: "stopped" }]);
  expect(flawsOf(later)).toEqual(named);
});

test("trajectories: a turn that runs when its session ends stays a turn of it, and a later one begins the next run", async () => {
  const bed = new Bed({ workers: 1, lengthOf: () => 20 });
  const events: TrajectoryEvent[] = [];
  const trajectories = recorder(bed, events);
  const begin = () => {
    const [request] = bed.generate(PROMPT, 1, { session: "a" });
    if (request === undefined) throw new Error("one request");
    trajectories.began({ name: "a", group: null }, [request]);
    return request;
  };
  const first = begin();
  await bed.finish();
  ended(trajectories, first);
  const late = begin();
  const left = begin();
  expect(trajectories.end("a")).toBe(1);
  const next = begin();
  trajectories.failed(left, "was left");
  await bed.finish();
  for (const request of [late, next]) ended(trajectories, request);
  const again = recorder(bed, []);
  again.restore([...events, { kind: "stopped" }]);
  for (const one of [trajectories, again]) {
    const seen = [...one.sessions(() => true)].map((session) => {
      const { run, flaws, trajectory } = session;
      return [
        run,
        one.stateOf(session),
        flaws.length,
        trajectory.turns.map(({ requestId }) => requestId),
      ];
    });
    const runs = [
      [1, "ended", 0, [0, 1]],
      [2, "open", 0, [3]],
    ];
    expect<unknown>(seen.toSorted()).toEqual(runs);
  }
});

test("trajectories: a session is gone as a whole where the log's bound took only what says that a part is missing", () => {
  const bed = new Bed({ workers: 1, lengthOf: () => 20 });
  const events: TrajectoryEvent[] = [];
  const trajectories = recorder(bed, events);
  trajectories.began({ name: "a", group: null }, []);
  trajectories.began({ name: "a", group: null }, bed.generate(PROMPT, 1));
  const again = recorder(bed, []);
  again.restore([...events.slice(1), { kind: "stopped" }]);
  expect([...again.sessions(() => true)]).toEqual([]);
  expect(again.whyDropped("a")).toContain("its beginning is gone");
});

test("trajectories: ending and forgetting a session takes no longer where there are many", () => {
  const trajectories = recorder(new Bed({ workers: 1, lengthOf: () => 20 }), []);
  const names = Array.from({ length: 50_000 }, (_, i) => ({ name: `s${i}`, group: null }));
  for (const name of names) trajectories.began(name, []);
  expect(names.reduce((sum, { name }) => sum + trajectories.end(name), 0)).toBe(50_000);
  expect(trajectories.end("s1")).toBe(0);
  for (const name of names) trajectories.forget(name);
  expect(trajectories.kept).toMatchObject({ bytes: 0, count: 0 });
}, 15_000);

test("trajectories: turns without end that come to nothing are kept up to a limit, and the session names the limit", async () => {
  const bed = new Bed({ workers: 1, lengthOf: () => 20 });
  const trajectories = recorder(bed, []);
  for (let i = 0; i < 1_200; i += 1) {
    const requests = bed.generate([i % 1_000, Math.floor(i / 1_000)], 1);
    trajectories.began({ name: "a", group: null }, requests);
    for (const request of requests) {
      bed.sidecar.rollout.end(request, "abort");
      trajectories.failed(request, "was left");
    }
  }
  await bed.finish();
  const [session] = trajectories.sessions(() => true);
  expect(session?.flaws).toHaveLength(1_025);
  expect(session?.flaws).toContain("more than 1024 turns came to nothing");
});
