// Micro benches of the core, beside arctic-inference in the same run where this Python has it. Prints a ratio table.
//
//   bun bench/micro/core.ts [--smoke] [--python PYTHON] [--json FILE]

import { parseArgs } from "node:util";
import { measure } from "mitata";
import { mix32 } from "../../src/core/base/hash.ts";
import { loadCore } from "../../src/core/wasm/load.ts";
import { SuffixIndex } from "../../src/core/wasm/suffix-index.ts";
import { InspectedHeap } from "../../test/suite/inspected-heap.ts";
import {
  fastestMs,
  helpFrom,
  type Measurement,
  ratioTable,
  SEED,
  writeReport,
} from "../harness.ts";
import { besidePeer, hasPeer, peerMissing } from "./peer-core.ts";
import { texts, type Workload } from "./workload.ts";

interface Sizes {
  readonly runs: number;
  /** Tokens of a sibling in the append and the live benches. */
  readonly tokens: number;
  readonly loop: number;
  readonly heap: number;
  readonly drops: number;
  /** CPU time that each timed call gets, ms. */
  readonly callMs: number;
}

const FULL: Sizes = { runs: 5, tokens: 8192, loop: 32_768, heap: 16_384, drops: 1000, callMs: 500 };
export const SMOKE: Sizes = { runs: 1, tokens: 256, loop: 512, heap: 256, drops: 10, callMs: 2 };
/** Tokens that a response gains in a step: the mean acceptance length of the drafts. */
const STEP_TOKENS = 2;
const QUERY = { tokensMax: 16, probabilityMin: 0.1 };

const noneFull = (): never => {
  throw new Error("the bench outgrew the core");
};

/** The tokens that a worker has just decoded: the index copies them, so one array serves all. */
const delta = new Int32Array(STEP_TOKENS);

type Groups = readonly Int32Array[][];

/** Appends STEP_TOKENS tokens from `at` to every sibling. */
function gain(index: SuffixIndex, handles: readonly number[], groups: Groups, at: number): void {
  for (const [g, group] of groups.entries()) {
    for (let k = 0; k < group.length; k += 1) {
      const text = group[k];
      if (text === undefined) continue;
      for (let i = 0; i < STEP_TOKENS; i += 1) delta[i] = text[at + i] ?? 0;
      index.append(handles[g] ?? 0, k, delta, 0);
    }
  }
}

/** Feeds whole groups, their siblings in turn. */
function feed(index: SuffixIndex, handles: readonly number[], groups: Groups): void {
  const length = groups[0]?.[0]?.length ?? 0;
  for (let at = 0; at < length; at += STEP_TOKENS) gain(index, handles, groups, at);
  index.flush();
}

/** ns for each token of one group of 16, and bytes. */
function appendBench(sizes: Sizes): Measurement[] {
  const groups = texts({ groups: 1, siblings: 16, tokens: sizes.tokens }, SEED);
  const count = 16 * sizes.tokens;
  const index = new SuffixIndex({}, noneFull);
  let bytes = 0;
  let drop = 0;
  const ours = fastestMs(sizes.runs + 1, () => {
    const before = index.core.used_bytes();
    const handle = index.create(Int32Array.of(1, 2, 3)) ?? 0;
    feed(index, [handle], groups);
    bytes = (index.core.used_bytes() - before) / count;
    const start = performance.now();
    index.drop(handle);
    drop = performance.now() - start;
  });
  const append = (ours * 1e6) / count;
  return [
    { name: "append, 16 siblings, a token", unit: "ns", value: append, target: 130 },
    { name: "stored token", unit: "bytes", value: bytes, target: 48 },
    { name: "drop of that group", unit: "us", value: drop * 1000 },
  ];
}

/** All requests draft a path and gain STEP_TOKENS, step after step: ns a token, and us a draft. */
function stepBench(
  shape: Workload,
  tree: boolean,
  runs: number,
): { perToken: number; perStep: number } {
  const groups = texts(shape, SEED);
  const index = new SuffixIndex({}, noneFull);
  const requests = shape.groups * shape.siblings;
  const steps = Math.floor(shape.tokens / STEP_TOKENS);
  const query = { ...QUERY, tree };
  const ms = fastestMs(runs, () => {
    const handles = groups.map(() => index.create(Int32Array.of(1, 2, 3)) ?? 0);
    for (let step = 0; step < steps; step += 1) {
      gain(index, handles, groups, step * STEP_TOKENS);
      index.begin(requests);
      for (const handle of handles) {
        for (let k = 0; k < shape.siblings; k += 1) index.draft(handle, k, query);
      }
      index.step();
    }
    for (const handle of handles) index.drop(handle);
  });
  return { perToken: (ms * 1e6) / (requests * steps * STEP_TOKENS), perStep: (ms * 1000) / steps };
}

function stepBenches(sizes: Sizes): Measurement[] {
  const small = { groups: 16, siblings: 8, tokens: sizes.tokens };
  const large = { groups: 128, siblings: 8, tokens: sizes.tokens >> 2 };
  const path = stepBench(small, false, sizes.runs);
  const tree = stepBench(small, true, sizes.runs);
  const thousand = stepBench(large, false, sizes.runs);
  return [
    { name: "append + path, 128 requests, a token", unit: "ns", value: path.perToken, target: 400 },
    { name: "append + tree, 128 requests, a token", unit: "ns", value: tree.perToken },
    { name: "append + path, 1,024 requests, a token", unit: "ns", value: thousand.perToken },
    { name: "step with paths, 128 requests", unit: "us", value: path.perStep, target: 200 },
    { name: "step with paths, 1,024 requests", unit: "us", value: thousand.perStep },
  ];
}

/** One draft through one JS call, the requests of a group in turn. */
async function draftBench(sizes: Sizes): Promise<Measurement[]> {
  const groups = texts({ groups: 1, siblings: 16, tokens: sizes.tokens }, SEED);
  const index = new SuffixIndex({}, noneFull);
  const handle = index.create(Int32Array.of(1, 2, 3)) ?? 0;
  feed(index, [handle], groups);
  let k = 0;
  const timed = async (work: () => void) =>
    (await measure(work, { min_cpu_time: sizes.callMs * 1e6 })).p50 / 1000;
  const ours = (tree: boolean, count: number) => {
    const query = { ...QUERY, tree };
    return () => {
      index.begin(count);
      for (let i = 0; i < count; i += 1) index.draft(handle, (k + i) % 16, query);
      index.step();
      k += 1;
    };
  };
  const path = await timed(ours(false, 1));
  const tree = await timed(ours(true, 1));
  const sixteen = (await timed(ours(false, 16))) / 16;
  const call = await timed(() => {
    index.core.abi_version();
  });
  return [
    { name: "path of 16, JS call included", unit: "us", value: path, target: 0.4 },
    { name: "path of 16, one of 16 in a call", unit: "us", value: sixteen },
    { name: "tree of 16, JS call included", unit: "us", value: tree, target: 2.5 },
    { name: "empty call from JS", unit: "ns", value: call * 1000 },
  ];
}

/** A sequence that repeats one token. */
function loopBench(sizes: Sizes): Measurement[] {
  const index = new SuffixIndex({}, noneFull);
  const handle = index.create(Int32Array.of(1)) ?? 0;
  index.append(handle, 0, new Int32Array(sizes.loop).fill(7), 0);
  index.flush();
  const more = new Int32Array(1000).fill(7);
  const append = fastestMs(5, () => {
    index.append(handle, 0, more, 0);
    index.flush();
  });
  const draft = fastestMs(5, () => {
    for (let i = 0; i < 1000; i += 1) {
      index.begin(1);
      index.draft(handle, 0, { ...QUERY, tree: false });
      index.step();
    }
  });
  const name = `in a loop of ${sizes.loop}, period 1`;
  return [
    { name: `append ${name}`, unit: "us", value: append, target: 1 },
    { name: `path ${name}`, unit: "us", value: draft, target: 2 },
  ];
}

/** ns for each operation of a heap of `sizes.heap` entries: update the first, and pop then push. */
function heapBench(sizes: Sizes): Measurement[] {
  const heap = new InspectedHeap(loadCore());
  const sorted: { id: number; key: number }[] = [];
  for (let id = 0; id < sizes.heap; id += 1) {
    heap.push(id, mix32(id));
    sorted.push({ id, key: mix32(id) });
  }
  const ops = 20_000;
  let turn = 0;
  const update = fastestMs(5, () => {
    for (let i = 0; i < ops; i += 1) {
      turn += 1;
      heap.update(mix32(turn) % sizes.heap, mix32(turn + 7));
    }
  });
  const cycle = fastestMs(5, () => {
    for (let i = 0; i < ops; i += 1) {
      turn += 1;
      heap.push(heap.pop() ?? 0, mix32(turn));
    }
  });
  // What most would write: one array kept sorted by sort() after each change.
  const resort = fastestMs(1, () => {
    for (let i = 0; i < 20; i += 1) {
      const entry = sorted[0];
      if (entry !== undefined) entry.key = mix32(i);
      sorted.sort((a, b) => a.key - b.key || a.id - b.id);
    }
  });
  const baselines = { "sort() of an array": (resort * 1e6) / 20 };
  const heapRow = (what: string, ms: number): Measurement => {
    const name = `heap of ${sizes.heap}: ${what}`;
    return { name, unit: "ns", value: (ms * 1e6) / ops, baselines };
  };
  return [heapRow("update a key", update), heapRow("pop and push", cycle)];
}

/** Many live groups come and go in turn: what a drop costs, and that nothing is lost to fragmentation. */
function churnBench(sizes: Sizes): Measurement[] {
  const groups = texts({ groups: sizes.drops, siblings: 4, tokens: 128 }, SEED);
  const index = new SuffixIndex({}, noneFull);
  const live = () => groups.map(() => index.create(Int32Array.of(1, 2, 3)) ?? 0);
  let handles = live();
  feed(index, handles, groups);
  const first = index.core.memory.buffer.byteLength;
  let drop = 0;
  for (let round = 0; round < 3; round += 1) {
    const start = performance.now();
    for (const handle of handles) index.drop(handle);
    drop = ((performance.now() - start) * 1e6) / sizes.drops;
    handles = live();
    feed(index, handles, groups);
  }
  const grown = index.core.memory.buffer.byteLength / first;
  const each = (index.core.used_bytes() >>> 0) / (sizes.drops * 512);
  return [
    { name: `drop, ${sizes.drops} groups of 512 tokens`, unit: "ns", value: drop },
    { name: "stored token of those groups", unit: "bytes", value: each },
    { name: "memory after 3 rounds, times the first", unit: "bytes", value: grown },
  ];
}

export async function coreBenches(sizes: Sizes): Promise<Measurement[]> {
  return [
    ...appendBench(sizes),
    ...stepBenches(sizes),
    ...(await draftBench(sizes)),
    ...loopBench(sizes),
    ...churnBench(sizes),
    ...heapBench(sizes),
  ];
}

if (import.meta.main) {
  const options = {
    smoke: { type: "boolean" },
    python: { type: "string", default: "python3" },
    json: { type: "string" },
  } as const;
  helpFrom(import.meta.path);
  const { values } = parseArgs({ options });
  const sizes = values.smoke === true ? SMOKE : FULL;
  const ours = await coreBenches(sizes);
  const isPeerHere = hasPeer(values.python);
  if (!isPeerHere) console.error(peerMissing(values.python));
  const peer = { python: values.python, tokens: sizes.tokens, step: STEP_TOKENS };
  const measurements = isPeerHere ? await besidePeer(ours, peer) : ours;
  console.log(ratioTable(measurements));
  writeReport(values.json, { measurements });
}
