// Groups of agents' sessions, drawn from a seed: what each says in each turn, what its tools answer, and how long these
// take. Siblings of a task have the same prompt, and quote the task and its tools' outputs as often as real siblings
// share text.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { generator } from "../../harness.ts";

export interface Turn {
  /** Ends with the end of text. */
  readonly output: readonly number[];
  /** The tool's output, which the next prompt has behind this turn's. */
  readonly observation: readonly number[];
  readonly toolS: number;
}

export interface Task {
  readonly prompt: readonly number[];
  /** Turns of each sibling. */
  readonly siblings: readonly (readonly Turn[])[];
}

/** Means of log-normal draws, with the deviation of their logarithms. */
interface Shape {
  readonly siblings: number;
  readonly turns: { readonly mean: number; readonly max: number };
  readonly systemTokens: number;
  readonly taskTokens: number;
  readonly outputTokens: number;
  readonly observationTokens: number;
  readonly deviation: number;
  /** Part of an output in quotes: siblings' 8-gram cover is 29 to 45 % in recorded rollouts. */
  readonly quotedPart: number;
  readonly toolS: { readonly mean: number; readonly min: number; readonly max: number };
  /** Differences from the workload that it is named after, for the report. */
  readonly told: string;
}

export const SHAPES = {
  single: {
    siblings: 1,
    turns: { mean: 6, max: 6 },
    systemTokens: 0,
    taskTokens: 96,
    outputTokens: 48,
    observationTokens: 24,
    deviation: 0.5,
    quotedPart: 0,
    toolS: { mean: 0.25, min: 0.05, max: 1 },
    told: "sessions of up to 6 turns without siblings, of random tokens that nothing repeats",
  },
  mlperf: {
    ...{ siblings: 16, turns: { mean: 6, max: 10 }, systemTokens: 96, taskTokens: 64 },
    outputTokens: 40,
    observationTokens: 48,
    deviation: 0.6,
    quotedPart: 0.35,
    toolS: { mean: 0.3, min: 0.05, max: 2 },
    told: "MLPerf v6.1 GRPO: 16 siblings as there; at most 30 turns -> 10; context 65,536 -> 1,600; system prompt 6,476 -> 96 tokens; outputs and observations divided by 8 at their medians; tools of minutes -> 0.05 to 2 s; 1,024 trajectories -> --tasks x 16",
  },
  tight: {
    ...{ siblings: 8, turns: { mean: 5, max: 8 }, systemTokens: 32, taskTokens: 48 },
    outputTokens: 48,
    observationTokens: 16,
    deviation: 0.5,
    quotedPart: 0.35,
    toolS: { mean: 0.25, min: 0.05, max: 1 },
    told: "a calculator's loop: short observations, gaps of 0.05 to 1 s; nothing is scaled",
  },
  weka: {
    ...{ siblings: 8, turns: { mean: 9, max: 12 }, systemTokens: 348, taskTokens: 0 },
    outputTokens: 0,
    observationTokens: 0,
    deviation: 0.5,
    quotedPart: 0.35,
    toolS: { mean: 0.1, min: 0.05, max: 1 },
    told: "64 of Weka's sessions of Claude Code under llm-d-rl's caps (bench/data/weka-sessions.jsonl); siblings constructed: the same prompt, lengths and numbers of turns apart by what siblings do not share; first prompts divided by 48, outputs and observations by 16, gaps by 10; at most 12 turns; 16,682 tokens of tools and system -> 348 that all share",
  },
} as const satisfies Record<string, Shape>;
export type WorkloadName = keyof typeof SHAPES;

/** Context of the servers. */
export const CONTEXT_TOKENS = 1_600;
/** Longest output of a turn, which every request asks for. */
export const OUTPUT_TOKENS_MAX = 128;
const QUOTE_TOKENS = 12;
/** Part of the variance of lengths that siblings share: 0.63 to 0.89 in agents' trials. */
const SHARED_VARIANCE = 0.7;
const FIRST_TOKEN = 256;
/** Tokens that set the prompt of a task apart from others. */
const OWN_TOKENS_MIN = 16;

interface Texts {
  readonly vocabularySize: number;
  readonly eos: number;
}

export function tasksOf(name: WorkloadName, count: number, seed: number, texts: Texts): Task[] {
  const shape: Shape = SHAPES[name];
  const writer = new Writer(seed, texts, shape.quotedPart);
  const system = writer.text(shape.systemTokens);
  return Array.from({ length: count }, () => {
    const recorded = name === "weka" ? writer.one(wekaSessions()) : null;
    const first = recorded?.[0]?.[0] ?? 0;
    const ownTokens =
      recorded === null ? shape.taskTokens : Math.round(first / CONTEXT_SCALE) - system.length;
    const prompt = [...system, ...writer.text(Math.max(OWN_TOKENS_MIN, ownTokens))];
    const task = { prompt, quotable: [...prompt], shared: writer.normal() };
    const session = (): Turn[] =>
      recorded === null ? drawn(shape, task, writer) : replayed(shape, task, recorded, writer);
    return { prompt, siblings: Array.from({ length: shape.siblings }, session) };
  });
}

interface Begun {
  readonly prompt: readonly number[];
  readonly quotable: number[];
  /** Part of the siblings' lengths that is the task's: standard normal. */
  readonly shared: number;
}

function drawn(shape: Shape, task: Begun, writer: Writer): Turn[] {
  const { shared } = task;
  const { mean, max } = shape.turns;
  const count = bounded(writer.around(mean, shared, shape.deviation), 2, max);
  const turns: Turn[] = [];
  for (let length = task.prompt.length; turns.length < count; ) {
    const outputTokens = bounded(
      writer.around(shape.outputTokens, shared, shape.deviation),
      4,
      OUTPUT_TOKENS_MAX - 1,
    );
    const output = writer.output(outputTokens, task.quotable);
    const observed = writer.around(shape.observationTokens, 0, shape.deviation);
    const observation = writer.text(bounded(observed, 4, OUTPUT_TOKENS_MAX));
    task.quotable.push(...observation);
    const { toolS } = shape;
    const seconds = writer.around(toolS.mean, 0, 0.8);
    const turn = { output, observation, toolS: Math.min(toolS.max, Math.max(toolS.min, seconds)) };
    length += turn.output.length + turn.observation.length;
    if (length + OUTPUT_TOKENS_MAX > CONTEXT_TOKENS) break;
    turns.push(turn);
  }
  return turns;
}

/** A recorded turn: tokens that are new in its prompt, those of its output, and seconds before it. */
type Recorded = readonly [number, number, number];

/** A sibling of a recorded session: its turns, with lengths and number apart from them as siblings' are. */
function replayed(
  { turns: { max }, deviation, toolS }: Shape,
  task: Begun,
  recorded: readonly Recorded[],
  writer: Writer,
): Turn[] {
  const own = (value: number): number => writer.around(value, 0, deviation);
  const count = Math.min(max, recorded.length, bounded(own(recorded.length), 2, max));
  const turns: Turn[] = [];
  let length = task.prompt.length;
  for (const [i, [, outputTokens]] of recorded.slice(0, count).entries()) {
    const output = bounded(own(outputTokens / LENGTH_SCALE), 4, OUTPUT_TOKENS_MAX - 1);
    const [news = 0, , gapS = 0] = recorded[i + 1] ?? [];
    const observation = writer.text(bounded(news / LENGTH_SCALE, 4, OUTPUT_TOKENS_MAX));
    const turn = {
      output: writer.output(output, task.quotable),
      observation,
      toolS: Math.min(toolS.max, Math.max(toolS.min, gapS * toolS.mean)),
    };
    task.quotable.push(...observation);
    length += turn.output.length + observation.length;
    if (length + OUTPUT_TOKENS_MAX > CONTEXT_TOKENS) break;
    turns.push(turn);
  }
  return turns;
}

/** Recorded first prompts and contexts are divided by the one, outputs and observations by the other. */
const CONTEXT_SCALE = 48;
const LENGTH_SCALE = 16;
const WEKA = join(import.meta.dir, "..", "..", "data", "weka-sessions.jsonl");

function wekaSessions(): readonly (readonly Recorded[])[] {
  const lines = readFileSync(WEKA, "utf8").trim().split("\n");
  return lines.map((line) => (JSON.parse(line) as { turns: readonly Recorded[] }).turns);
}

function bounded(value: number, min: number, max: number): number {
  return Math.min(max, Math.max(min, Math.round(value)));
}

/** Draws of one seed. */
class Writer {
  readonly #random: () => number;
  readonly #texts: Texts;
  readonly #quotedPart: number;

  constructor(seed: number, texts: Texts, quotedPart: number) {
    this.#random = generator(seed);
    this.#texts = texts;
    this.#quotedPart = quotedPart;
  }

  one<T>(of: readonly T[]): T | null {
    return of[Math.floor(this.#random() * of.length)] ?? null;
  }

  text(length: number): number[] {
    const { vocabularySize, eos } = this.#texts;
    return Array.from({ length }, () => {
      const token = FIRST_TOKEN + Math.floor(this.#random() * (vocabularySize - FIRST_TOKEN));
      return token === eos ? FIRST_TOKEN : token;
    });
  }

  normal(): number {
    const radius = Math.sqrt(-2 * Math.log(1 - this.#random()));
    return radius * Math.cos(2 * Math.PI * this.#random());
  }

  /** Log-normal around the mean, `shared` of the task's siblings. */
  around(mean: number, shared: number, deviation: number): number {
    const own = Math.sqrt(1 - SHARED_VARIANCE) * this.normal();
    const all = deviation * (Math.sqrt(SHARED_VARIANCE) * shared + own);
    return mean * Math.exp(all - deviation ** 2 / 2);
  }

  /** Text with quotes, that ends. */
  output(length: number, quotable: readonly number[]): number[] {
    const made: number[] = [];
    while (made.length < length) {
      const from = Math.floor(this.#random() * (quotable.length - QUOTE_TOKENS));
      const isQuote = this.#random() < this.#quotedPart;
      made.push(...(isQuote ? quotable.slice(from, from + QUOTE_TOKENS) : this.text(QUOTE_TOKENS)));
    }
    return [...made.slice(0, length), this.#texts.eos];
  }
}

/** Text of a session behind its prompt: outputs and observations in turn. */
export function transcriptOf(turns: readonly Turn[]): number[] {
  return turns.flatMap(({ output, observation }) => [...output, ...observation]);
}
