// Attacks on weight epochs that nobody announces: the engines (stand-ins for vLLM) are updated past the sidecar, while
// requests run, one engine later than the other, or not at all; requests name versions, late ones older versions,
// salts count something else. No engine may see one KV salt under two versions that requests tell apart, and an engine
// with old weights must not serve once that can be known.

import { expect, setDefaultTimeout, test } from "bun:test";
import { present } from "../../../src/core/base/assert.ts";
import { type Choice, until } from "../http-client.ts";
import { rounds } from "./scale.ts";
import { expectedOf, StandInBed } from "./stand-in-bed.ts";

setDefaultTimeout(180_000);

async function generate(bed: StandInBed, prompt: number[], more: object = {}): Promise<Choice> {
  const { extra = {}, ...fields } = more as { extra?: object };
  const params = { max_tokens: 24, extra_args: extra };
  const choice = present((await bed.http.choices(prompt, params, fields))[0], "no choice");
  return choice;
}

const versionOf = async (bed: StandInBed) =>
  (await generate(bed, [3])).weight_versions[0]?.version ?? "";

/** All stand-ins have the version, and the sidecar knows it of each. */
async function updated(bed: StandInBed, version: string): Promise<void> {
  for (const standIn of bed.standIns) standIn.weightVersion = version;
  const isKnown = async () => {
    const workers = await bed.http.workers();
    const areCurrent = workers.every(
      (worker) => worker.state === "ready" && worker.weight_version === version,
    );
    return areCurrent && (await versionOf(bed)) === version;
  };
  await until(isKnown, version);
}

const epochOf = ({ sidecar }: StandInBed): number => sidecar.sidecar.rollout.epoch;

const HINTS: readonly [string, (step: number) => object][] = [
  ["policy_version", (step) => ({ policy_version: step })],
  ["weight_version in extra arguments", (step) => ({ extra: { weight_version: `step-${step}` } })],
  ["cache_salt", (step) => ({ cache_salt: String(step) })],
];

for (const [name, hintOf] of HINTS) {
  test(`updates past the sidecar, named by ${name}: no KV salt is used under two versions`, async () => {
    const bed = await StandInBed.start(2);
    const steps = rounds(5, 60);
    for (let step = 1; step <= steps; step += 1) {
      for (const standIn of bed.standIns) standIn.weightVersion = `w${step}`;
      const prompts = Array.from({ length: 12 }, (_, i) => [10 + (i % 4), 7, 9]);
      const choices = await Promise.all(prompts.map((p) => generate(bed, p, hintOf(step))));
      for (const [i, choice] of choices.entries()) {
        const siblings = prompts.slice(0, i).filter((p) => p[0] === prompts[i]?.[0]).length;
        if (siblings === 0 && step === 1) {
          expect(choice.token_ids).toEqual([...expectedOf(prompts[i] ?? []).tokens]);
        }
        expect(choice.weight_versions).toHaveLength(1);
      }
      // A late request of the step before changes nothing.
      const before = epochOf(bed);
      if (step > 1) await generate(bed, [1, 2], hintOf(step - 1));
      expect(epochOf(bed)).toBe(before);
    }
    for (const { versionsBySalt } of bed.standIns) {
      for (const [salt, versions] of versionsBySalt) {
        // Late requests have a salt of their own, or the present one; the probes at the start have none.
        const numbers = [...versions].map((version) => Number(version.slice(1)));
        const isOwn = salt.includes("-s-") || !salt.includes("-w");
        if (!isOwn) expect([salt, numbers.length]).toEqual([salt, 1]);
      }
    }
    expect(epochOf(bed)).toBeGreaterThanOrEqual(steps - 1);
    await stopped(bed);
  });
}

/** Stops it: nothing has failed. */
async function stopped(bed: StandInBed): Promise<void> {
  expect(bed.failures).toEqual([]);
  await bed.stop();
}

test("updates past the sidecar that only the engines report begin an epoch within a poll", async () => {
  const bed = await StandInBed.start(2);
  for (let step = 1; step <= rounds(4, 40); step += 1) {
    const before = epochOf(bed);
    for (const standIn of bed.standIns) standIn.weightVersion = `step-${step}`;
    await until(() => epochOf(bed) > before || step === 1, "the next epoch");
    await until(async () => {
      const [one] = (await generate(bed, [5, step])).weight_versions;
      return one?.version === `step-${step}` && bed.sidecar.sidecar.rollout.workers.length === 2;
    }, "both serve");
    // Once for both engines, however they were polled.
    expect(epochOf(bed)).toBeLessThanOrEqual(before + 1);
  }
  await stopped(bed);
});

test("an engine that was not updated is fenced, counted and named, until it is or leaves", async () => {
  const bed = await StandInBed.start(2);
  const [first, left] = bed.standIns;
  if (first === undefined || left === undefined) throw new Error("two stand-ins");
  await updated(bed, "step-1");
  const hasStale = (count: number) =>
    until(
      async () => (await bed.http.metric("foretoken_workers_stale{")) === count,
      `${count} stale`,
    );
  first.weightVersion = "step-2";
  await hasStale(1);
  const stale = (await bed.http.workers()).filter(({ state }) => state === "fenced");
  expect(stale).toMatchObject([{ stale: true, weight_version: "step-1" }]);
  expect(stale[0]?.reason).toBe(
    "has stale weights: it reports step-1, the current ones are step-2",
  );
  const before = left.bodies.length;
  const answers = await Promise.all(
    Array.from({ length: 20 }, (_, i) => generate(bed, [4, i], { policy_version: "step-2" })),
  );
  for (const { weight_versions: versions } of answers) {
    expect(versions).toMatchObject([{ version: "step-2" }]);
  }
  expect(left.bodies.length).toBe(before);
  left.weightVersion = "step-2";
  await until(() => bed.sidecar.sidecar.rollout.workers.length === 2, "it serves");
  await hasStale(0);
  first.weightVersion = "step-3";
  await hasStale(1);
  await bed.http.call(`/workers/${encodeURIComponent(left.url)}`, { method: "DELETE" });
  await hasStale(0);
  await stopped(bed);
});

test("a weight changes under a running wave: every response is whole, and of versions in their order", async () => {
  const bed = await StandInBed.start(2);
  for (const standIn of bed.standIns) standIn.weightVersion = "0";
  const prompts = Array.from({ length: rounds(40, 600) }, (_, i) => [20 + (i % 9), 1, i]);
  let step = 0;
  const timer = setInterval(() => {
    step += 1;
    for (const standIn of bed.standIns) standIn.weightVersion = String(step);
  }, 150);
  const answers = await Promise.all(prompts.map((prompt) => generate(bed, prompt)));
  clearInterval(timer);
  for (const [i, { token_ids: tokens, weight_versions: versions }] of answers.entries()) {
    expect(tokens).toEqual([...expectedOf(prompts[i] ?? []).tokens]);
    const numbers = versions.map(({ version }) => Number(version));
    expect(numbers).toEqual([...numbers].sort((a, b) => a - b));
  }
  await stopped(bed);
});

test("salts that count requests, name tenants or are random begin no epoch while requests run", async () => {
  const bed = await StandInBed.start(2);
  const salts = Array.from({ length: 40 }, (_, i) => [
    `tenant-${i}`,
    String(i),
    crypto.randomUUID(),
  ]);
  await Promise.all(salts.flat().map((salt, i) => generate(bed, [9, i], { cache_salt: salt })));
  expect(epochOf(bed)).toBe(0);
  await bed.stop();
});
