// Time and memory of the drafting core, beside arctic-inference in the same run where this Python has it, and of the
// scheduler's heap, beside an array that is sorted again. Prints a ratio table.
//
//   bun bench/micro/core.ts [--tokens 8192] [--python PYTHON] [--json FILE]
//
// tokens: of a sibling. To have the peer (peer_core.py) without a GPU: python3 -m venv peer; peer/bin/pip install numpy;
// peer/bin/pip install --no-deps arctic-inference==0.1.1; and name it: --python peer/bin/python.

import { join } from "node:path";
import { measure } from "mitata";
import { textTable } from "../../src/cli/output.ts";
import { mix32 } from "../../src/core/base/hash.ts";
import { loadCore } from "../../src/core/wasm/load.ts";
import { SuffixIndex } from "../../src/core/wasm/suffix-index.ts";
import { InspectedHeap } from "../../test/suite/inspected-heap.ts";
import { flagsOf, writeReport } from "../harness.ts";
import { texts } from "./texts.ts";

/** One measured quantity. Lower is better for every unit used here. */
interface Measurement {
  readonly name: string;
  readonly unit: "ns" | "us" | "bytes";
  readonly value: number;
  /** The value to stay at or below, if one is set. */
  readonly target?: number;
  /** The same work by something else, in the same run. */
  readonly baseline?: { readonly name: string; readonly value: number };
}

/** Tokens that a response gains in a step: the mean acceptance length of the drafts. */
const STEP_TOKENS = 2;
const QUERY = { tokensMax: 16, probabilityMin: 0.1 };
const PROMPT = Int32Array.of(1, 2, 3);
const RUNS = 5;

type Groups = readonly (readonly Int32Array[])[];

const newIndex = () =>
  new SuffixIndex({}, () => {
    throw new Error("the bench outgrew the core");
  });

/** The fastest of the runs of `work`, in ms: other load on the machine only ever adds. */
function fastestMs(work: () => void): number {
  const times = Array.from({ length: RUNS }, () => {
    const start = performance.now();
    work();
    return performance.now() - start;
  });
  return Math.min(...times);
}

/** The tokens that a worker has just decoded: the index copies them, so one array serves all. */
const delta = new Int32Array(STEP_TOKENS);

/** Appends STEP_TOKENS tokens from `at` to every sibling. */
function gain(index: SuffixIndex, handles: readonly number[], groups: Groups, at: number): void {
  for (const [g, group] of groups.entries()) {
    for (const [k, text] of group.entries()) {
      for (let i = 0; i < STEP_TOKENS; i += 1) delta[i] = text[at + i] ?? 0;
      index.append(handles[g] ?? 0, k, delta, 0);
    }
  }
}

/** Feeds a whole group, its siblings in turn; returns its handle. */
function fed(index: SuffixIndex, group: readonly Int32Array[]): number {
  const handle = index.create(PROMPT) ?? 0;
  const length = group[0]?.length ?? 0;
  for (let at = 0; at < length; at += STEP_TOKENS) gain(index, [handle], [group], at);
  index.flush();
  return handle;
}

/** One group of 16. */
function appendBench(tokens: number): Measurement[] {
  const [group = []] = texts(1, 16, tokens);
  const index = newIndex();
  let bytes = 0;
  const ms = fastestMs(() => {
    const before = index.core.used_bytes();
    const handle = fed(index, group);
    bytes = index.core.used_bytes() - before;
    index.drop(handle);
  });
  const count = 16 * tokens;
  return [
    { name: "append, 16 siblings, a token", unit: "ns", value: (ms * 1e6) / count, target: 130 },
    { name: "stored token", unit: "bytes", value: bytes / count, target: 48 },
  ];
}

/** All requests draft a path and gain STEP_TOKENS, step after step. */
function stepBench(count: number, tokens: number, perTokenMax?: number): Measurement[] {
  const groups = texts(count, 8, tokens);
  const requests = count * 8;
  const index = newIndex();
  const ms = fastestMs(() => {
    const handles = groups.map(() => index.create(PROMPT) ?? 0);
    for (let at = 0; at < tokens; at += STEP_TOKENS) {
      gain(index, handles, groups, at);
      index.begin(requests);
      for (const handle of handles) {
        for (let k = 0; k < 8; k += 1) index.draft(handle, k, { ...QUERY, tree: false });
      }
      index.step();
    }
    for (const handle of handles) index.drop(handle);
  });
  const name = requests.toLocaleString("en");
  const perToken = (ms * 1e6) / (requests * tokens);
  const perStep = (ms * 1000) / (tokens / STEP_TOKENS);
  const goals = perTokenMax === undefined ? [{}, {}] : [{ target: perTokenMax }, { target: 200 }];
  return [
    { name: `append + path, ${name} requests, a token`, unit: "ns", value: perToken, ...goals[0] },
    { name: `step with paths, ${name} requests`, unit: "us", value: perStep, ...goals[1] },
  ];
}

/** One draft through one JS call, the requests of a group in turn. */
async function draftBench(tokens: number): Promise<Measurement[]> {
  const [group = []] = texts(1, 16, tokens);
  const index = newIndex();
  const handle = fed(index, group);
  let k = 0;
  const us = async (tree: boolean) => {
    const { p50 } = await measure(() => {
      index.begin(1);
      index.draft(handle, k % 16, { ...QUERY, tree });
      index.step();
      k += 1;
    });
    return p50 / 1000;
  };
  return [
    { name: "path of 16, JS call included", unit: "us", value: await us(false), target: 0.4 },
    { name: "tree of 16, JS call included", unit: "us", value: await us(true), target: 2.5 },
  ];
}

/** A sequence that repeats one token. */
function loopBench(tokens: number): Measurement[] {
  const index = newIndex();
  const handle = index.create(Int32Array.of(1)) ?? 0;
  index.append(handle, 0, new Int32Array(4 * tokens).fill(7), 0);
  index.flush();
  const more = new Int32Array(1000).fill(7);
  const append = fastestMs(() => {
    index.append(handle, 0, more, 0);
    index.flush();
  });
  const draft = fastestMs(() => {
    for (let i = 0; i < 1000; i += 1) {
      index.begin(1);
      index.draft(handle, 0, { ...QUERY, tree: false });
      index.step();
    }
  });
  const name = `in a loop of ${4 * tokens}, period 1`;
  return [
    { name: `append ${name}`, unit: "us", value: append, target: 1 },
    { name: `path ${name}`, unit: "us", value: draft, target: 2 },
  ];
}

const ENTRIES = 16_384;
const OPERATIONS = 20_000;
const SORTS = 20;

/** A pop and a push of a full heap. */
function heapBench(): Measurement {
  const heap = new InspectedHeap(loadCore());
  const sorted = Array.from({ length: ENTRIES }, (_, id) => ({ id, key: mix32(id) }));
  for (const { id, key } of sorted) heap.push(id, key);
  let turn = 0;
  const ms = fastestMs(() => {
    for (let i = 0; i < OPERATIONS; i += 1) {
      turn += 1;
      heap.push(heap.pop() ?? 0, mix32(turn));
    }
  });
  // What most would write: one array kept sorted by sort() after each change.
  const sortMs = fastestMs(() => {
    for (let i = 0; i < SORTS; i += 1) {
      const [entry] = sorted;
      if (entry !== undefined) entry.key = mix32(i);
      sorted.sort((a, b) => a.key - b.key || a.id - b.id);
    }
  });
  const value = (ms * 1e6) / OPERATIONS;
  const baseline = { name: "sort() of an array", value: (sortMs * 1e6) / SORTS };
  return { name: `heap of ${ENTRIES}: pop and push`, unit: "ns", value, baseline };
}

/** Figures of arctic-inference on the same texts, by the name of the row; null: this Python does not have it. */
async function peerFigures(python: string, tokens: number): Promise<Map<string, number> | null> {
  const probe = [python, "-c", "import arctic_inference.suffix_decoding"];
  const quiet = { stdout: "ignore", stderr: "ignore" } as const;
  if (Bun.which(python) === null || Bun.spawnSync(probe, quiet).exitCode !== 0) return null;
  const lists = (groups: Groups) => groups.map((group) => group.map((text) => [...text]));
  const [siblings] = lists(texts(1, 16, tokens));
  // Fewer live tokens favour it.
  const input = JSON.stringify({
    siblings,
    live: lists(texts(16, 8, tokens >> 3)),
    step: STEP_TOKENS,
  });
  const child = Bun.spawn([python, join(import.meta.dir, "peer_core.py")], {
    stdin: new Blob([input]),
    stdout: "pipe",
    stderr: "inherit",
  });
  const text = await new Response(child.stdout).text();
  if ((await child.exited) !== 0) throw new Error("the peer's bench failed");
  const found = JSON.parse(text);
  return new Map([
    ["append, 16 siblings, a token", found.append_ns],
    ["stored token", found.bytes],
    ["append + path, 128 requests, a token", found.live_ns],
    ["path of 16, JS call included", found.path_us],
    ["tree of 16, JS call included", found.tree_us],
  ]);
}

const flags = flagsOf(import.meta.path, { tokens: 8192, python: "python3" });
const { tokens, python, json } = flags;
const ours = [
  ...appendBench(tokens),
  ...stepBench(16, tokens, 400),
  ...stepBench(128, tokens >> 2),
  ...(await draftBench(tokens)),
  ...loopBench(tokens),
  heapBench(),
];
const peer = await peerFigures(python, tokens);
if (peer === null) console.error(`${python} has no arctic-inference: see --help`);
const measurements = ours.map((one): Measurement => {
  const value = peer?.get(one.name);
  return value === undefined ? one : { ...one, baseline: { name: "arctic-inference", value } };
});
const rows = measurements.map(({ name, unit, value, target, baseline }) => [
  name,
  `${value.toPrecision(3)} ${unit}`,
  target === undefined ? "" : `<= ${target}`,
  baseline === undefined ? "" : `${baseline.name} ${baseline.value.toPrecision(3)}`,
  baseline === undefined ? "" : `${(baseline.value / value).toFixed(1)}x`,
]);
console.log(textTable(["", "ours", "target", "baseline", "ratio"], rows));
writeReport(json, { measurements });
