// Gives a target its inputs, several at a time where it takes them so, and collects what it throws: the first of what
// differs in numbers alone.

import { Generator } from "./generator.ts";
import type { FuzzTarget } from "./target.ts";

export interface Finding {
  readonly index: number;
  readonly problem: string;
  /** Cut to a length that can be read. */
  readonly input: string;
}

export interface RunRange {
  readonly seed: number;
  /** Indices of the inputs: `from` inclusive, `to` exclusive. */
  readonly from: number;
  readonly to: number;
  /** Ends the run. */
  readonly findingsMax: number;
}

interface RunOptions extends RunRange {
  /** Called before and after each input. */
  readonly started?: (index: number, slot: number) => void;
  readonly ended?: (slot: number) => void;
  readonly found?: (finding: Finding) => void;
}

export async function runTarget(target: FuzzTarget, options: RunOptions): Promise<Finding[]> {
  const { seed, from, to, findingsMax } = options;
  const bed = await target.open();
  const generator = new Generator(bed.inputs, { seed, name: target.name });
  const findings: Finding[] = [];
  const kinds = new Set<string>();
  let next = from;
  const lane = async (slot: number): Promise<void> => {
    while (next < to && findings.length < findingsMax) {
      const index = next;
      next += 1;
      options.started?.(index, slot);
      const input = generator.at(index);
      try {
        await bed.take(input);
      } catch (error) {
        const problem = problemOf(error);
        const kind = problem.replaceAll(/\d+/g, "N");
        if (kinds.has(kind)) continue;
        kinds.add(kind);
        const finding = { index, problem, input: shown(input) };
        findings.push(finding);
        options.found?.(finding);
      } finally {
        options.ended?.(slot);
      }
    }
  };
  try {
    await Promise.all(Array.from({ length: bed.width ?? 1 }, (_, slot) => lane(slot)));
  } finally {
    await bed.close();
  }
  return findings;
}

const STACK_LINES = 8;
const SHOWN_MAX = 2_000;

function problemOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const stack = error.stack?.split("\n").slice(0, STACK_LINES).join("\n") ?? error.message;
  const text = stack.includes(error.message) ? stack : `${error.message}\n${stack}`;
  return error.cause === undefined ? text : `${text}\ncause: ${problemOf(error.cause)}`;
}

/** Bytes as Latin-1 with escapes. */
function shown(input: unknown): string {
  const text = JSON.stringify(input, (_, value: unknown) =>
    value instanceof Uint8Array ? Buffer.from(value).toString("latin1") : value,
  );
  return text.length <= SHOWN_MAX ? text : `${text.slice(0, SHOWN_MAX)}...`;
}
