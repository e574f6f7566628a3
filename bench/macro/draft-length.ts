// Does an embedded engine draft where drafts pay, and nowhere else? An iteration of the demo on recorded texts, once for each
// table of step times: real drafts, the engine's rule, and the table's milliseconds. Nothing is timed: each run prints the same.
//
//   bun bench/macro/draft-length.ts [--json FILE]
//
// Columns: seconds of both engines without drafts, with 1 to 8 tokens in every step, and by the rule, over the best of these
// and over none. Two engines take requests longest group first; where KV runs short, the youngest goes back with its KV.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { textTable } from "../../src/cli/output.ts";
import { groupId } from "../../src/core/base/ids.ts";
import {
  AdaptiveLength,
  type DraftPlanner,
  type StepTimes,
} from "../../src/core/draft/draft-length.ts";
import type { Drafter } from "../../src/core/draft/drafter.ts";
import { Replica } from "../../src/core/draft/replica.ts";
import { Sequence } from "../../src/engines/llama/sequence.ts";
import { StepSpeculation } from "../../src/engines/llama/speculation.ts";
import {
  draftsPay,
  LearnedStepCost,
  ProfiledStepCost,
  type StepSample,
} from "../../src/engines/llama/step-cost.ts";
import { samplingOf, specOf } from "../../test/suite/request-spec.ts";
import { flagsOf, writeReport } from "../harness.ts";

const ENGINES = 2;
const [SLOTS, CHUNK_TOKENS, GROUP_MAX] = [16, 128, 8];
/** KV of an engine and tokens of a response, at most: the demo's, longer ones, and room for all of these. */
const SIZES = [
  { kvTokens: 600, tokensMax: 450 },
  { kvTokens: 1150, tokensMax: 900 },
  { kvTokens: 40_960, tokensMax: 900 },
] as const;
const ROOM_ROWS = 64;
/** Attention's time for a row by the KV of the step's longest request, beyond the tokens under which steps are profiled. */
const [ATTENTION_MS, PROFILED_TOKENS] = [7.6e-5, 96];
/** Time of drafts beside steps: their code, once an engine; each token of a replica; proposals of a step, and each request's. */
const [START_MS, TOKEN_MS, PROPOSE_MS, PROPOSE_REQUEST_MS] = [150, 0.008, 0.02, 0.003];

const timesOf = (...samples: [rows: number, ms: number][]): readonly StepSample[] =>
  samples.map(([rows, ms]) => ({ rows, ms }));

/** Step times by rows that machines with two cores have shown. */
export const TABLES = {
  // Two rows take another kernel than one.
  "priced, AMD": timesOf([1, 4.1], [2, 9.9], [4, 10.2], [6, 10.9], [8, 16.2], [16, 21]),
  "priced, Intel": timesOf(
    ...([
      [1, 11.1],
      [2, 12.3],
      [3, 13.8],
      [4, 14.1],
      [6, 15.9],
    ] as [number, number][]),
    ...([
      [8, 20.4],
      [12, 25],
      [16, 32.4],
      [32, 57.8],
    ] as [number, number][]),
  ),
  "priced, an older Intel": timesOf([1, 15.4], [3, 16.3], [17, 54]),
  "bundled, Intel": timesOf([1, 0.34], [2, 0.45], [3, 0.64], [4, 0.76], [8, 1.4], [16, 2.7]),
  // The part that does not depend on the rows takes as long as 2.9 of them.
  "bundled, an older Intel": timesOf([1, 3.9 * 0.085], [16, 18.9 * 0.085]),
};

/** The same length in every step. */
class FixedLength implements DraftPlanner {
  readonly probabilityMin = 0.06;
  readonly #length: number;

  constructor(length: number) {
    this.#length = length;
  }

  wantsDrafts(): boolean {
    return true;
  }

  choose({ gains }: { gains: Float64Array }): number {
    return Math.min(this.#length, gains.findLastIndex((gain) => gain > 0) + 1);
  }
}

interface Recorded {
  readonly prompt: number[];
  readonly responses: number[][];
}

const DATA = join(import.meta.dirname, "../data/demo-responses.jsonl");
const recorded = (): Recorded[] =>
  readFileSync(DATA, "utf8")
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));

/** A response as a sequence, and the tokens that it is to have. */
interface Running {
  readonly sequence: Sequence;
  readonly text: readonly number[];
}

/** Responses that have generated nothing yet: probes first, then the longest groups. */
function inOrder(groups: readonly Recorded[], tokensMax: number): Running[] {
  const tokens = ({ responses }: Recorded) => responses.reduce((sum, text) => sum + text.length, 0);
  const byLength = groups.toSorted((a, b) => tokens(b) - tokens(a));
  const all = byLength.flatMap(({ prompt, responses }, g) =>
    responses.map((whole, sampleIndex) => {
      const text = whole.slice(0, tokensMax);
      const sampling = samplingOf({ seed: 1, tokensMax });
      const wanted = { groupId: groupId(`g${g}`), sampleIndex, prompt: Int32Array.from(prompt) };
      const request = specOf(g * GROUP_MAX + sampleIndex, { ...wanted, sampling });
      const start = { output: new Int32Array(0), chunkTokens: tokensMax, kv: null } as const;
      const draft = { groupId: wanted.groupId, sampleIndex };
      const priority = sampleIndex === 0 ? "high" : "low";
      return { sequence: new Sequence({ kind: "run", request, ...start, draft, priority }), text };
    }),
  );
  const isProbe = ({ sequence }: Running) => sequence.spec.sampleIndex === 0;
  return [...all.filter(isProbe), ...all.filter((one) => !isProbe(one))];
}

interface Cell {
  readonly samples: readonly StepSample[];
  readonly kvTokens: number;
  readonly tokensMax: number;
}

/** The time of all engines by the table. `newPlanner` null: without drafts. */
function modelled(
  { samples, kvTokens, tokensMax }: Cell,
  newPlanner: (() => DraftPlanner) | null,
): number {
  const waiting = inOrder(recorded(), tokensMax);
  const replica = new Replica();
  for (const { sequence } of waiting) replica.register(sequence.spec.groupId, sequence.spec.prompt);
  const engines = Array.from(
    { length: ENGINES },
    () => new Engine({ kvTokens, truth: new ProfiledStepCost(samples), replica, newPlanner }),
  );
  for (;;) {
    const busy = engines.filter((engine) => engine.running.length > 0 || waiting.length > 0);
    const [next] = busy.toSorted((a, b) => a.ms - b.ms);
    if (next === undefined) return engines.reduce((sum, { ms }) => sum + ms, 0);
    next.step(waiting);
  }
}

interface EngineOptions {
  readonly kvTokens: number;
  readonly truth: StepTimes;
  readonly replica: Replica;
  readonly newPlanner: (() => DraftPlanner) | null;
}

class Engine {
  ms = 0;
  running: Running[] = [];
  readonly #options: EngineOptions;
  readonly #learnt: LearnedStepCost;
  readonly #speculation: StepSpeculation | null;

  constructor(options: EngineOptions) {
    const { truth, replica, newPlanner } = options;
    this.#options = options;
    this.#learnt = new LearnedStepCost(truth);
    if (newPlanner !== null) this.ms += START_MS;
    const propose: Drafter["propose"] = (queries) => {
      this.ms += PROPOSE_MS + PROPOSE_REQUEST_MS * queries.length;
      return replica.propose(queries);
    };
    const rest = { drafter: { has: () => true, propose }, clock: { nowMs: () => this.ms } };
    this.#speculation = newPlanner && new StepSpeculation({ planner: newPlanner(), ...rest });
  }

  step(waiting: Running[]): void {
    this.#admit(waiting);
    const speculation = this.#speculation;
    const batch = this.running.length;
    const decoding = this.running.map(({ sequence }) => sequence);
    for (const sequence of decoding) sequence.draftLength = 0;
    const used = decoding.reduce((sum, { length }) => sum + length + 1, 0);
    const room = Math.min(ROOM_ROWS - batch, this.#options.kvTokens - used);
    speculation?.propose(decoding, room, this.#learnt);
    const rows = batch * (1 + (speculation?.length ?? 0));
    const longest = Math.max(...decoding.map(({ length }) => length));
    const attentionMs = ATTENTION_MS * Math.max(0, longest - PROFILED_TOKENS) * rows;
    const stepMs = this.#options.truth.ms(batch, rows) + attentionMs;
    this.ms += stepMs;
    this.#learnt.observe(batch, rows, stepMs);
    for (const one of this.running) this.#read(one);
    this.running = this.running.filter(({ sequence, text }) => sequence.outputLength < text.length);
  }

  /** As many as fit with a chunk each; where KV runs short, the youngest goes back with its KV kept. */
  #admit(waiting: Running[]): void {
    const { kvTokens, truth } = this.#options;
    const used = () => this.running.reduce((sum, { sequence }) => sum + sequence.length + 1, 0);
    while (this.running.length > 1 && used() > kvTokens)
      waiting.unshift(this.running.pop() as Running);
    for (let next = waiting[0]; next !== undefined; next = waiting[0]) {
      const { length, promptLength } = next.sequence;
      const isFull = this.running.length === SLOTS || used() + length + CHUNK_TOKENS > kvTokens;
      if (isFull && this.running.length > 0) return;
      waiting.shift();
      this.running.push(next);
      if (length === promptLength) this.ms += truth.ms(length, length);
    }
  }

  /** The tokens of the text that the draft has, and the one after them. */
  #read({ sequence, text }: Running): void {
    const { outputLength } = sequence;
    let accepted = 0;
    const isNext = () =>
      this.#speculation?.token(sequence, accepted) === text[outputLength + accepted];
    while (outputLength + accepted + 1 < text.length && isNext()) accepted += 1;
    const made = text.slice(outputLength, outputLength + accepted + 1);
    for (const token of made) sequence.append(token, 0);
    if (this.#speculation === null) return;
    const { groupId, sampleIndex } = sequence.spec;
    this.#options.replica.update(groupId, sampleIndex, outputLength, Int32Array.from(made));
    this.ms += TOKEN_MS * made.length;
  }
}

const LENGTHS = [1, 2, 4, 8];

export interface Row {
  readonly name: string;
  /** Milliseconds. */
  readonly off: number;
  readonly fixed: readonly number[];
  readonly rule: number;
}

export function rows(): Row[] {
  return Object.entries(TABLES).flatMap(([model, samples]) =>
    SIZES.map((size) => {
      const cell = { samples, ...size };
      const off = modelled(cell, null);
      const fixed = LENGTHS.map((length) => modelled(cell, () => new FixedLength(length)));
      const drafts = draftsPay(new ProfiledStepCost(samples), SLOTS);
      const rule = drafts ? modelled(cell, () => new AdaptiveLength()) : off;
      return { name: `${model}, KV ${size.kvTokens}`, off, fixed, rule };
    }),
  );
}

if (import.meta.main) {
  const { json } = flagsOf(import.meta.path, {});
  const all = rows();
  const cells = all.map(({ name, off, fixed, rule }) => [
    name,
    ...[off, ...fixed, rule].map((ms) => (ms / 1000).toFixed(2)),
    ...[Math.min(off, ...fixed), off].map((ms) => (rule / ms).toFixed(2)),
  ]);
  const head = ["step times", "off", ...LENGTHS.map(String), "rule", "over best", "over off"];
  console.log(textTable(head, cells));
  writeReport(json, { rows: all });
}
