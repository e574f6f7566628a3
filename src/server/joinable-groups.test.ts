// What the sidecar keeps for siblings to come: counted in bytes, prompts included, and never beyond its bound.

import { expect, test } from "bun:test";
import { Bed, DEAF, specFor } from "../../test/suite/sidecar-bed.ts";

const PROMPT_TOKENS = 500;

const prompt = (first: number): number[] =>
  Array.from({ length: PROMPT_TOKENS }, (_, i) => (i === 0 ? first : i));

test("kept groups: prompts count, and the bytes of all of them stay below the bound", async () => {
  const keptBytesMax = 100_000;
  const bed = new Bed({ workers: 1, lengthOf: () => 20, limits: { keptBytesMax } });
  const { rollout } = bed.sidecar;
  let most = 0;
  for (let i = 0; i < 200; i += 1) {
    bed.generate(prompt(i), 2);
    await bed.finish();
    const { kept } = bed.sidecar;
    most = Math.max(most, kept.bytes);
    expect(kept.bytes).toBeLessThanOrEqual(keptBytesMax);
    // A group is its prompt and two responses: some 2,000 + 512 + 2 x (512 + 2,048) bytes.
    expect(kept.bytes).toBeGreaterThan(kept.count * (PROMPT_TOKENS * 4));
  }
  expect(most).toBeGreaterThan(keptBytesMax * 0.8);
  expect(bed.sidecar.kept.count).toBeLessThan(16);
  // What is not kept the rollout does not hold either.
  const held = Array.from({ length: 200 }, (_, i) => rollout.group(`g${i + 1}` as never));
  expect(held.filter((group) => group !== null).length).toBe(bed.sidecar.kept.count);
});

test("kept groups: alternatives of each token count", async () => {
  const bed = new Bed({ workers: 1, lengthOf: () => 20 });
  const plain = specFor([1], 1);
  bed.sidecar.generate(plain, DEAF);
  await bed.finish();
  const without = bed.sidecar.kept.bytes;
  bed.sidecar.generate(
    { ...specFor([2], 1), sampling: { ...plain.sampling, topLogprobs: 20 } },
    DEAF,
  );
  await bed.finish();
  // 64 tokens of room, 20 alternatives of 8 bytes each.
  expect(bed.sidecar.kept.bytes - without).toBeGreaterThan(64 * 20 * 8);
});

test("kept groups: a generation that lets its group go leaves nothing of it", async () => {
  const bed = new Bed({ workers: 1, lengthOf: () => 20 });
  const generation = bed.sidecar.generate(specFor([1], 4), DEAF);
  await bed.finish();
  expect(bed.sidecar.kept.count).toBe(1);
  generation.release();
  expect(bed.sidecar.kept).toMatchObject({ bytes: 0, count: 0 });
  expect(bed.sidecar.rollout.group(generation.requests[0]?.spec.groupId as never)).toBeNull();
  generation.release();
});

test("groups: a wave of which 512 requests are in flight at a time is one group for each prompt", async () => {
  const prompts = 96;
  const size = 16;
  const inFlightMax = 512;
  const bed = new Bed({ workers: 4, lengthOf: ({ sampleIndex }) => 5 + sampleIndex, slots: 128 });
  const groups = new Map<number, Set<string>>();
  // Samples of one prompt are far apart, so that the first are over long before the last come.
  const wave = Array.from({ length: prompts * size }, (_, i) => i % prompts);
  let next = 0;
  const begin = () => {
    const first = wave[next];
    if (first === undefined) return;
    next += 1;
    const finished = () => begin();
    const { requests } = bed.sidecar.generate(specFor(prompt(first), 1), { ...DEAF, finished });
    const known = groups.get(first) ?? new Set();
    groups.set(first, known.add(requests[0]?.spec.groupId ?? ""));
  };
  for (let i = 0; i < inFlightMax; i += 1) begin();
  await bed.finish();
  expect(next).toBe(wave.length);
  expect([...groups.values()].map(({ size: count }) => count)).toEqual(Array(prompts).fill(1));
});

test("groups: beyond the bound one that has ended goes before one that runs", async () => {
  const bed = new Bed({ workers: 1, lengthOf: () => 20, limits: { groupsMax: 2 } });
  const join = (first: number) => bed.generate([first], 1)[0]?.group.groupId ?? "";
  const ended = join(1);
  await bed.finish();
  const running = join(2);
  // It was joined last, and has ended again by the time that room is wanted.
  const other = join(3);
  expect(join(2)).toBe(running);
  expect(join(1)).not.toBe(ended);
  expect(join(2)).toBe(running);
  expect(other).not.toBe(running);
  await bed.finish();
});

test("groups: another salt is another group", async () => {
  const bed = new Bed({ workers: 1, lengthOf: () => 20 });
  const { sampling } = specFor([1], 1);
  const groupWith = (cacheSalt: string | null) => {
    const spec = { ...specFor([1], 1), sampling: { ...sampling, cacheSalt } };
    return bed.sidecar.generate(spec, DEAF).requests[0]?.group;
  };
  const none = groupWith(null);
  const one = groupWith("1");
  const two = groupWith("2");
  expect(new Set([none, one, two]).size).toBe(3);
  expect(groupWith("1")).toBe(one);
  await bed.finish();
});
