// Draws tokens from rows of logits with the kernel of assembly/sample. A draw depends on the logits and a random number, and
// not on batches, drafts or workers.

import { type Pointer, ptr } from "bun:ffi";
import { readFileSync } from "node:fs";
import KERNEL from "../../../build/sample.wasm" with { type: "file" };
import { AppError } from "../../core/base/errors.ts";
import type { LogitShaping } from "../../core/request/request.ts";

interface SampleExports {
  readonly resultOffset: () => number;
  readonly rowOffset: () => number;
  readonly rowLength: (n: number) => number;
  readonly memoryBytes: (n: number) => number;
  readonly sample: (n: number, temperature: number, u: number) => number;
  readonly filter: (
    n: number,
    temperature: number,
    minP: number,
    topK: number,
    topP: number,
  ) => void;
  readonly top: (n: number, temperature: number, count: number) => number;
  readonly topTokensOffset: () => number;
  readonly topLogprobsOffset: () => number;
}

const PAGE_BYTES = 65536;
/** Maximum of reported alternatives: TOP_MAX of the kernel's layout. */
export const TOP_LOGPROBS_MAX = 32;

export class Sampler {
  /** The logits to sample from, `vocabularySize` numbers, which the caller writes. */
  readonly row: Float32Array;
  /** Address of `row`, for C to write to. The kernel's memory does not grow any more, so the address never changes. */
  readonly rowPointer: Pointer;
  readonly #vocabularySize: number;
  readonly #kernel: SampleExports;
  readonly #logprob: Float64Array;
  readonly #topTokens: Int32Array;
  readonly #topLogprobs: Float32Array;

  /** @throws AppError core_version: the kernel has not been built. */
  constructor(vocabularySize: number) {
    const memory = new WebAssembly.Memory({ initial: 1 });
    const { exports } = new WebAssembly.Instance(compileKernel(), { env: { memory } });
    const kernel = exports as unknown as SampleExports;
    // Before any view of it is made.
    memory.grow(Math.ceil(kernel.memoryBytes(vocabularySize) / PAGE_BYTES) - 1);
    const { buffer } = memory;
    this.#vocabularySize = vocabularySize;
    this.#kernel = kernel;
    this.#logprob = new Float64Array(buffer, kernel.resultOffset(), 1);
    this.#topTokens = new Int32Array(buffer, kernel.topTokensOffset(), TOP_LOGPROBS_MAX);
    this.#topLogprobs = new Float32Array(buffer, kernel.topLogprobsOffset(), TOP_LOGPROBS_MAX);
    const padded = new Float32Array(buffer, kernel.rowOffset(), kernel.rowLength(vocabularySize));
    padded.fill(Number.NEGATIVE_INFINITY);
    this.row = padded.subarray(0, vocabularySize);
    this.rowPointer = ptr(this.row);
  }

  /** Masks in `row` the tokens that min_p, top_k and top_p exclude at this temperature; `draw` then draws from the rest. */
  filter(temperature: number, { minP, topK, topP }: LogitShaping): void {
    this.#kernel.filter(this.#vocabularySize, temperature, minP, topK, topP);
  }

  /**
   * Draws a token from `row` by the uniform number `u`. temperature 0: the likeliest token, lowest id first.
   * `logprob` then has its log-probability. -1: `row` has a NaN, or no token is left to draw.
   */
  draw(temperature: number, u: number): number {
    return this.#kernel.sample(this.#vocabularySize, temperature, u);
  }

  /** Logprob of the last token drawn, in the distribution that it was drawn from (temperature 0: softmax of the logits). */
  get logprob(): number {
    return this.#logprob[0] as number;
  }

  /**
   * Writes the `count` likeliest tokens of the last draw's distribution, and their logprobs, from index `at`
   * on. If fewer tokens have any probability, the rest is token -1 with logprob -inf.
   */
  writeTop(
    temperature: number,
    count: number,
    target: { tokens: Int32Array; logprobs: Float32Array; at: number },
  ): void {
    const { tokens, logprobs, at } = target;
    const written = this.#kernel.top(this.#vocabularySize, temperature, count);
    for (let i = 0; i < count; i += 1) {
      tokens[at + i] = i < written ? (this.#topTokens[i] as number) : -1;
      logprobs[at + i] = i < written ? (this.#topLogprobs[i] as number) : Number.NEGATIVE_INFINITY;
    }
  }
}

function compileKernel(): WebAssembly.Module {
  try {
    return new WebAssembly.Module(readFileSync(KERNEL));
  } catch (cause) {
    const problem = `${KERNEL} is missing or not readable; build it with: bun run build`;
    throw new AppError("core_version", problem, { cause });
  }
}
