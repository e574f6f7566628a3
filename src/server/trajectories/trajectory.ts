// What one session of an agent was for the model: the token ids of its turns as contiguous sequences, which of them the
// model drew, with which logprobs and weights. A turn whose prompt begins with everything before it goes on in the same
// segment. One whose prompt leaves it (the agent edited or dropped a part, or went back to an earlier turn) begins
// another segment, which knows from which one, and how many first tokens the two have in common.
//
//   segment 0   [ prompt | output 0 | tool's answer | output 1 ]
//   segment 1   [ parent 0, up to output 0 | another tool's answer | output 2 ]

import type { FinishReason } from "../../core/request/request.ts";
import { sharedTokens } from "../sessions.ts";

/** Tokens of one output that were drawn from the same weights. */
export interface WeightsSpan {
  readonly tokens: number;
  readonly epoch: number;
  /** The trainer's name for the weights. */
  readonly version: string;
}

/** A function that the model called, as the answer to the client named it. */
export interface ToolCall {
  readonly name: string;
  /** JSON, as the model wrote it. */
  readonly arguments: string;
}

export interface Parent {
  readonly segment: number;
  /** Number of first tokens that both have. */
  readonly tokens: number;
}

/** The place of a turn: behind all of `segment`, which it begins if `parent` is set or there is none yet. */
export interface Place {
  readonly segment: number;
  /** The segment that the turn's own one leaves; null: the turn begins no segment, or the first one. */
  readonly parent: Parent | null;
}

export interface Turn {
  readonly requestId: number;
  /** Number of the trainer's iteration in which it ended. */
  readonly iteration: number;
  readonly promptTokens: number;
  /** Unix time, seconds. */
  readonly beganS: number;
  readonly endedS: number;
  readonly finish: FinishReason | null;
  /** Tokens of the prompt that an engine had in its KV cache; null: not reported. */
  readonly cachedTokens: number | null;
  readonly adapter: string | null;
  readonly toolCalls: readonly ToolCall[];
  readonly place: Place;
  /** The part of the prompt that its place does not have yet. */
  readonly news: Int32Array;
  readonly output: Int32Array;
  readonly logprobs: Float32Array;
  readonly spans: readonly WeightsSpan[];
}

interface Segment {
  /** The segment that this one left; null: it is the first. */
  readonly parent: Parent | null;
  /** Its turns, each with the segment's length at its end. */
  readonly turns: { readonly turn: Turn; readonly end: number }[];
  /** What its turns added, in order. */
  readonly pieces: Int32Array[];
  /** Number of all its tokens, those of the parent included. */
  length: number;
}

/** Memory of one turn's objects: its record and its spans. */
const TURN_OVERHEAD = 768;

export class Trajectory {
  /** All turns, in the order of their ends. */
  readonly turns: Turn[] = [];
  readonly #segments: Segment[] = [];
  #bytes = 0;

  get bytes(): number {
    return this.#bytes;
  }

  get segmentCount(): number {
    return this.#segments.length;
  }

  /** The place of a turn with this prompt; `shared`: number of first tokens of the prompt that are there already. */
  placeOf(prompt: Int32Array): Place & { readonly shared: number } {
    const shared = this.#sharedWith(prompt);
    const most = Math.max(0, ...shared);
    const whole = this.#segments.findLastIndex(
      ({ length }, i) => length === most && shared[i] === most,
    );
    if (whole >= 0) return { segment: whole, parent: null, shared: most };
    const segment = this.#segments.length;
    if (segment === 0) return { segment, parent: null, shared: 0 };
    return { segment, parent: { segment: shared.lastIndexOf(most), tokens: most }, shared: most };
  }

  /** Adds a turn. Its place comes from `placeOf`, with no turn added since. */
  add(turn: Turn): void {
    const { place, news, output, logprobs } = turn;
    let segment = this.#segments[place.segment];
    if (segment === undefined) {
      const { parent } = place;
      segment = { parent, turns: [], pieces: [], length: parent?.tokens ?? 0 };
      this.#segments.push(segment);
    }
    segment.length += news.length + output.length;
    segment.turns.push({ turn, end: segment.length });
    segment.pieces.push(news, output);
    this.turns.push(turn);
    this.#bytes += TURN_OVERHEAD + news.byteLength + output.byteLength + logprobs.byteLength;
  }

  /** All tokens that the model has read or drawn by the end of the turn. */
  textOf(turn: Turn): Int32Array {
    const { segment } = turn.place;
    const { end = 0 } = this.#segments[segment]?.turns.find((one) => one.turn === turn) ?? {};
    return this.#tokensOf(segment, end);
  }

  /** The texts at the ends of the turns of the newest segments, the newest segment first, its shortest text first. */
  endsOfTurns(segmentsMax: number): (() => Int32Array)[][] {
    const newest = [...this.#segments.entries()].slice(-segmentsMax).toReversed();
    return newest.map(([index, { turns }]) =>
      turns.map(
        ({ end }) =>
          () =>
            this.#tokensOf(index, end),
      ),
    );
  }

  /**
   * All of a segment. `lossMask`: 1 for output of its own turns, as a parent's output is trained on once; `logprobs`: NaN
   * elsewhere. `spans`: which weights drew the output [from, to).
   */
  segment(index: number) {
    const { parent, turns, length } = this.#segments[index] ?? NO_SEGMENT;
    const lossMask = new Uint8Array(length);
    const logprobs = new Float32Array(length).fill(Number.NaN);
    const spans: { turn: number; from: number; to: number; epoch: number; version: string }[] = [];
    for (const { turn, end } of turns) {
      let from = end - turn.output.length;
      lossMask.fill(1, from, from + turn.output.length);
      logprobs.set(turn.logprobs, from);
      const number = this.turns.indexOf(turn);
      for (const { tokens, epoch, version } of turn.spans) {
        spans.push({ turn: number, from, to: from + tokens, epoch, version });
        from += tokens;
      }
    }
    return { parent, tokenIds: this.#tokensOf(index, length), lossMask, logprobs, spans };
  }

  /** For each segment, the number of first tokens that the prompt shares. Parents come before their children. */
  #sharedWith(prompt: Int32Array): number[] {
    const shared: number[] = [];
    for (const { parent, pieces } of this.#segments) {
      let at = parent === null ? 0 : Math.min(shared[parent.segment] ?? 0, parent.tokens);
      let isEqual = at === (parent?.tokens ?? 0);
      for (const tokens of pieces) {
        if (!isEqual) break;
        const count = sharedTokens(prompt, tokens, at);
        at += count;
        isEqual = count === tokens.length;
      }
      shared.push(at);
    }
    return shared;
  }

  /** The first `length` tokens of a segment. */
  #tokensOf(index: number, length: number): Int32Array {
    const all = new Int32Array(length);
    let end = length;
    for (let segment = this.#segments[index]; segment !== undefined && end > 0; ) {
      const { parent, pieces }: Segment = segment;
      let at = parent?.tokens ?? 0;
      for (const tokens of pieces) {
        if (at < end) all.set(tokens.subarray(0, end - at), at);
        at += tokens.length;
      }
      end = Math.min(end, parent?.tokens ?? 0);
      segment = this.#segments[parent?.segment ?? -1];
    }
    return all;
  }
}

const NO_SEGMENT: Segment = { parent: null, turns: [], pieces: [], length: 0 };
