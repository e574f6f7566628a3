// Groups of agents' sessions, drawn from a seed: what each says in each turn, what its tools answer, and how long these
// take. Siblings of a task have the same prompt, and quote the task and its tools' outputs as often as real siblings
// share text.

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
  readonly toolS: { readonly mean: number; readonly min: number; readonly max: number };
  /** Differences from the workload that it is named after, for the report. */
  readonly told: string;
}

export const SHAPES = {
  mlperf: {
    ...{ siblings: 16, turns: { mean: 6, max: 10 }, systemTokens: 96, taskTokens: 64 },
    ...{ outputTokens: 40, observationTokens: 48, deviation: 0.6 },
    toolS: { mean: 0.3, min: 0.05, max: 2 },
    told: "MLPerf v6.1 GRPO: 16 siblings as there; at most 30 turns -> 10; context 65,536 -> 1,600; system prompt 6,476 -> 96 tokens; outputs and observations divided by 8 at their medians; tools of minutes -> 0.05 to 2 s; 1,024 trajectories -> --tasks x 16",
  },
  tight: {
    ...{ siblings: 8, turns: { mean: 5, max: 8 }, systemTokens: 32, taskTokens: 48 },
    ...{ outputTokens: 48, observationTokens: 16, deviation: 0.5 },
    toolS: { mean: 0.25, min: 0.05, max: 1 },
    told: "a calculator's loop: short observations, gaps of 0.05 to 1 s; nothing is scaled",
  },
} as const satisfies Record<string, Shape>;
export type WorkloadName = keyof typeof SHAPES;

/** Context of the servers. */
export const CONTEXT_TOKENS = 1_600;
/** Longest output of a turn, which every request asks for. */
export const OUTPUT_TOKENS_MAX = 128;
/** Part of an output in quotes: siblings' 8-gram cover is 29 to 45 % in recorded rollouts. */
const QUOTED_PART = 0.35;
const QUOTE_TOKENS = 12;
/** Part of the variance of lengths that siblings share: 0.63 to 0.89 in agents' trials. */
const SHARED_VARIANCE = 0.7;
const FIRST_TOKEN = 256;

interface Texts {
  readonly vocabularySize: number;
  readonly eos: number;
}

export function tasksOf(
  name: WorkloadName,
  count: number,
  seed: number,
  { vocabularySize, eos }: Texts,
): Task[] {
  const shape: Shape = SHAPES[name];
  const random = generator(seed);
  const token = (): number => {
    const drawn = FIRST_TOKEN + Math.floor(random() * (vocabularySize - FIRST_TOKEN));
    return drawn === eos ? FIRST_TOKEN : drawn;
  };
  const text = (length: number): number[] => Array.from({ length }, token);
  const normal = (): number =>
    Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  /** Log-normal around the mean, `shared` of the task's siblings. */
  const around = (mean: number, shared: number, deviation: number): number => {
    const own = Math.sqrt(1 - SHARED_VARIANCE) * normal();
    const all = deviation * (Math.sqrt(SHARED_VARIANCE) * shared + own);
    return mean * Math.exp(all - deviation ** 2 / 2);
  };
  const bounded = (value: number, min: number, max: number): number =>
    Math.min(max, Math.max(min, Math.round(value)));
  const system = text(shape.systemTokens);
  return Array.from({ length: count }, () => {
    const prompt = [...system, ...text(shape.taskTokens)];
    const quotable = [...prompt];
    const shared = normal();
    const output = (): number[] => {
      const length = bounded(
        around(shape.outputTokens, shared, shape.deviation),
        4,
        OUTPUT_TOKENS_MAX - 1,
      );
      const made: number[] = [];
      while (made.length < length) {
        const from = Math.floor(random() * (quotable.length - QUOTE_TOKENS));
        const isQuote = random() < QUOTED_PART;
        made.push(...(isQuote ? quotable.slice(from, from + QUOTE_TOKENS) : text(QUOTE_TOKENS)));
      }
      return [...made.slice(0, length), eos];
    };
    const observation = (): number[] => {
      const made = text(
        bounded(around(shape.observationTokens, 0, shape.deviation), 4, OUTPUT_TOKENS_MAX),
      );
      quotable.push(...made);
      return made;
    };
    const toolS = (): number => {
      const { mean, min, max } = shape.toolS;
      return Math.min(max, Math.max(min, around(mean, 0, 0.8)));
    };
    const { mean, max } = shape.turns;
    const session = (): Turn[] => {
      const turns: Turn[] = [];
      const count = bounded(around(mean, shared, shape.deviation), 2, max);
      for (let length = prompt.length; turns.length < count; ) {
        const turn = { output: output(), observation: observation(), toolS: toolS() };
        length += turn.output.length + turn.observation.length;
        if (length + OUTPUT_TOKENS_MAX > CONTEXT_TOKENS) break;
        turns.push(turn);
      }
      return turns;
    };
    return { prompt, siblings: Array.from({ length: shape.siblings }, session) };
  });
}

/** Text of a session behind its prompt: outputs and observations in turn. */
export function transcriptOf(turns: readonly Turn[]): number[] {
  return turns.flatMap(({ output, observation }) => [...output, ...observation]);
}
