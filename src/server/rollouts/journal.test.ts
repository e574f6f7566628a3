// Rollouts that continue in another process, over simulated workers and journals in memory.

import { expect, test } from "bun:test";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { Bed } from "../../../test/suite/sidecar-bed.ts";
import { present } from "../../core/base/assert.ts";
import { weightEpoch, weightsId } from "../../core/base/ids.ts";
import { lastWeights, savedWeights } from "../../core/journal/held-weights.ts";
import type { JournalLog } from "../../core/journal/log.ts";
import { readJournal, type SavedRun } from "../../core/journal/read.ts";
import { RecordWriter } from "../../core/journal/records.ts";
import type { RunFile, RunFiles } from "../../core/journal/run-journal.ts";
import type { Text } from "../../text/text.ts";
import { KnownRollouts, savedRollout } from "./known.ts";
import { ROLLOUT_LIMITS, type RolloutPlan } from "./plan.ts";

const text = { decode: () => "" } as unknown as Text;

class MemoryFile implements RunFile {
  isRemoved = false;
  readonly #log: JournalLog;
  readonly #parts: Uint8Array[] = [];

  constructor(log: JournalLog) {
    this.#log = log;
  }

  get saved(): SavedRun | null {
    return readJournal(Buffer.concat(this.#parts), "memory");
  }

  touch(): void {}

  async settled(): Promise<void> {
    if (this.#log.hasNews) this.#parts.push(this.#log.take().slice());
  }

  close(): Promise<void> {
    return this.settled();
  }

  async remove(): Promise<void> {
    this.isRemoved = true;
  }
}

function world(saved: readonly SavedRun[] = []) {
  const written: MemoryFile[] = [];
  const files: RunFiles = {
    open: (log) => {
      const file = new MemoryFile(log);
      written.push(file);
      return file;
    },
  };
  const bed = new Bed({ workers: 2, lengthOf: ({ sampleIndex }) => 20 + 10 * sampleIndex });
  const known = new KnownRollouts({
    sidecar: bed.sidecar,
    clock: bed.clock,
    text,
    files,
    versionOf: (epoch) => `v${epoch}`,
    held: () => ({ weights: null, base: "first" }),
    limits: ROLLOUT_LIMITS,
  });
  known.takeOver(saved.map(savedRollout));
  const savedNow = () => written.flatMap((file) => file.saved ?? []);
  const advance = (): void => {
    const epoch = weightEpoch(1);
    bed.sidecar.advance(epoch);
    for (const worker of bed.workers) worker.send([{ kind: "advance", epoch }]);
  };
  const finish = () => bed.finish();
  return { ...bed, step: () => bed.step(), finish, known, written, savedNow, advance };
}

/** A process that has begun the rollout, and made so many steps; null: all. */
async function begun(steps: number | null, fields: Partial<RolloutPlan> = {}) {
  const first = world();
  first.known.begin(planOf(fields), "hash");
  if (steps === null) await first.finish();
  for (let i = 0; i < (steps ?? 0); i += 1) await first.step();
  for (const file of first.written) await file.settled();
  return first;
}

const thrown = (error: unknown): never => {
  throw error;
};

function planOf(fields: Partial<RolloutPlan> = {}): RolloutPlan {
  const sampling = samplingOf({ seed: 3, tokensMax: 50 });
  const group = (id: string, n: number) => ({
    id,
    n,
    prompt: Int32Array.of(1, 2, id.length),
    sampling,
    seeded: false,
  });
  return {
    id: "r",
    groups: [group("long", 4), group("s", 1)],
    priority: 0,
    isDetached: true,
    isStrict: true,
    ...fields,
  };
}

/** A process that goes on with what the first one kept, to the end. */
async function resumed(first: ReturnType<typeof world>) {
  const second = world(first.savedNow());
  second.known.resume([], thrown);
  await second.finish();
  return second;
}

const shown = (known: KnownRollouts) =>
  known.run("r").groups.map(({ requests }) =>
    requests.map(({ response, spec }) => ({
      tokens: [...response.tokens()],
      logprobs: [...response.logprobs()],
      draw: spec.draw,
    })),
  );

test("resume: what was kept continues with the same random numbers, and comes out as from one process", async () => {
  const whole = await begun(null);
  const first = await begun(22);
  expect(first.known.run("r").finishedGroups.map(({ id }) => id)).toEqual(["s"]);

  const second = world(first.savedNow());
  expect(() => second.known.run("r")).toThrow("go on when the engines serve");
  second.known.resume([], thrown);
  const run = second.known.run("r");
  expect(second.known.begin(planOf(), "hash")).toBe(run);
  await second.step();
  expect(run.finishedGroups.map(({ id }) => id)).toEqual(["s"]);
  await second.finish();
  expect(run.state).toBe("finished");
  expect(shown(second.known)).toEqual(shown(whole.known));
  expect(second.sidecar.rollout.meter.counts.resumed_tokens).toBeGreaterThan(60);
});

test("resume: what a client added and gave up stays so", async () => {
  const steered = async (stopsAt: number | null) => {
    const first = await begun(3, { isOpen: true });
    const run = first.known.run("r");
    const [long] = planOf().groups;
    run.add([{ plan: { ...present(long, "a group"), n: 2 }, base: 4 }], null);
    run.add([{ plan: { ...present(long, "a group"), id: "new", n: 2 }, base: 0 }], false);
    run.giveUp("s");
    for (let i = 0; i < (stopsAt ?? 0); i += 1) await first.step();
    if (stopsAt === null) await first.finish();
    for (const file of first.written) await file.settled();
    return first;
  };
  const whole = await steered(null);
  const first = await steered(12);
  expect(first.known.run("r").state).toBe("running");
  const second = await resumed(first);
  const run = second.known.run("r");
  expect(run.state).toBe("finished");
  expect(run.report).toMatchObject({ added_groups: 2, added_requests: 4, given_up_groups: 1 });
  expect(run.finishedGroups.map(({ id, base }) => [id, base]).toSorted()).toEqual([
    ["long", 0],
    ["long", 4],
    ["new", 0],
  ]);
  expect(shown(second.known)).toEqual(shown(whole.known));
});

test("resume: a rollout all of whose groups its client gave up is over", async () => {
  const first = await begun(1);
  for (const id of ["long", "s"]) first.known.run("r").giveUp(id);
  expect(first.known.run("r").state).toBe("finished");
  await first.written[0]?.settled();
  const second = await resumed(first);
  expect(second.known.run("r").state).toBe("finished");
});

test("resume: with other weights the rollout fails by name and keeps what had finished", async () => {
  const first = world();
  for (const worker of first.workers) Object.assign(worker, { weights: weightsId("f32:aa") });
  first.known.begin(planOf(), "hash");
  for (let i = 0; i < 22; i += 1) await first.step();
  await first.written[0]?.settled();
  const second = world(first.savedNow());
  const failures: string[] = [];
  second.known.resume([weightsId("f32:bb")], (error) => failures.push(String(error)));
  await second.finish();
  const run = second.known.run("r");
  expect(run.state).toBe("failed");
  expect(failures.join()).toContain(
    'rollout "r" of the journal: its tokens are of the weights f32:aa',
  );
  expect(second.sidecar.rollout.unfinished).toBe(0);
});

test("resume: finished rollouts, and those of an epoch before the engines' one, are not of wrong weights", async () => {
  const first = world();
  for (const worker of first.workers) Object.assign(worker, { weights: weightsId("f32:aa") });
  first.known.begin(planOf(), "hash");
  await first.finish();
  first.known.begin(planOf({ id: "later" }), "hash");
  for (let i = 0; i < 10; i += 1) await first.step();
  for (const worker of first.workers) Object.assign(worker, { weights: weightsId("f32:bb") });
  first.sidecar.advance(weightEpoch(1));
  for (const file of first.written) await file.settled();
  const second = world(first.savedNow());
  second.advance();
  const failures: string[] = [];
  second.known.resume([weightsId("f32:bb")], (error) => failures.push(String(error)));
  await second.finish();
  expect(failures).toEqual([]);
  expect(second.known.runs().map(({ id, state }) => [id, state])).toEqual([
    ["r", "finished"],
    ["later", "finished"],
  ]);
});

test("journals name the newest weights, and what gives them to an engine, also if no rollout runs", async () => {
  const first = await begun(null);
  first.sidecar.advance(weightEpoch(1));
  for (const file of first.written) await file.settled();
  expect(lastWeights(first.savedNow().map(savedRollout))).toEqual({
    epoch: weightEpoch(1),
    version: "v1",
    weights: null,
    base: "first",
    doubted: [],
  });
  // Responses that ended under the weights before still name them.
  const named = savedWeights(first.savedNow().map(savedRollout));
  expect(named.map(({ epoch, version }) => [epoch, version])).toEqual([
    [weightEpoch(0), "v0"],
    [weightEpoch(1), "v1"],
  ]);
});

test("carry_from: groups that an earlier process did not make whole go on where they were", async () => {
  const whole = await begun(null);
  const first = await begun(null, { finishGroups: 1 });
  const second = await resumed(first);
  expect(second.known.run("r").carried.map(({ plan }) => plan.id)).toEqual(["long"]);
  second.known.begin(planOf({ id: "next", groups: [], carryFrom: "r" }), "other");
  await second.finish();
  // A simulated worker's tokens depend on the number of the request: those that were carried on are the former one's.
  const known = (rollouts: KnownRollouts, id: string) =>
    rollouts.run(id).groups[0]?.requests.map(({ response, spec }) => ({
      tokens: [...response.tokens().subarray(0, 20)],
      length: response.length,
      draw: spec.draw,
    }));
  expect(known(second.known, "next")).toEqual(known(whole.known, "r"));
  expect(second.sidecar.rollout.meter.counts.resumed_tokens).toBeGreaterThan(60);
});

test("a strict response does not go on from tokens of earlier weights, a mixed one does", async () => {
  for (const isStrict of [true, false]) {
    const first = await begun(12, { isStrict });
    await first.known.close();
    const second = world(first.savedNow());
    second.advance();
    second.known.resume([], () => {});
    await second.finish();
    const epochs = second.known
      .run("r")
      .groups.flatMap(({ requests }) => requests.flatMap(({ response }) => response.chunks))
      .map(({ epoch }): number => epoch);
    expect(epochs.includes(0)).toBe(!isStrict);
    expect(epochs.includes(1)).toBe(true);
  }
});

test("journals: that of a cancelled rollout goes, those of others stay after the end", async () => {
  const { known, written, step } = world();
  known.begin(planOf(), "hash");
  known.begin(planOf({ id: "other" }), "hash");
  await step();
  known.run("r").cancel();
  await step();
  expect(written.map(({ isRemoved }) => isRemoved)).toEqual([true, false]);
  await known.close();
  known.run("other").cancel();
  expect(written.map(({ isRemoved }) => isRemoved)).toEqual([true, false]);
});

test("a journal of an earlier release's `foretoken rollout` is refused by its name", () => {
  const writer = new RecordWriter();
  writer.json({ format: 1, job: "digest" });
  const run = present(readJournal(writer.take(), "folder/rollout.journal"), "it is whole");
  expect(() => savedRollout(run)).toThrow(
    "folder/rollout.journal is no journal of a rollout, or one of an earlier release; use",
  );
});
