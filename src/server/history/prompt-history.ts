// What earlier weight epochs made of each prompt: their responses, as a draft source of engines with the plugin, and their
// lengths, as a prior for the scheduler. A history belongs to one model, and within it each adapter has its own.

import type { LengthPrior } from "../../core/context/context.ts";
import { History } from "../../core/draft/history.ts";
import type { Group, RolloutRequest } from "../../core/request/buffer.ts";
import { promptKey } from "../../core/request/prompt-key.ts";
import type { Kept } from "../kept.ts";

export interface PromptHistoryOptions {
  /** Limit of all responses together. */
  readonly limitBytes: number;
  /** The model's name. */
  readonly model: string;
  /** Limit of prompts whose lengths are kept. Default: 65,536. */
  readonly promptsMax?: number;
}

/** Lengths of a prompt's responses, in tokens. */
interface Lengths {
  /** The latest epoch in which one finished. */
  epoch: number;
  /** Longest finished response of that epoch. */
  longest: number;
  /** Longest of the epoch before it in which the prompt occurred; null: none. */
  before: number | null;
}

const PROMPTS_MAX = 65_536;

export class PromptHistory {
  readonly #history: History;
  readonly #options: PromptHistoryOptions;
  /** Lengths by the prompt's key; the least recently used prompt comes first. */
  readonly #lengths = new Map<number, Lengths>();
  /** Key of each group's prompt, computed once: a prompt may be long, and has many responses. */
  readonly #keys = new WeakMap<Group, number>();

  constructor(options: PromptHistoryOptions) {
    this.#options = options;
    this.#history = new History(options.limitBytes);
  }

  /** Starts the next weight epoch: responses added from now on belong to it. */
  advance(): void {
    this.#history.advance();
  }

  /** Records a response that has ended. One that was given up is no sample of the prompt's lengths. */
  finished(request: RolloutRequest): void {
    const { response, group } = request;
    if (response.length === 0) return;
    const key = this.#keyOf(group, request);
    this.#history.add(key, response.tokens());
    if (response.finish !== "abort" && response.refusal === null)
      this.#sample(key, response.length);
  }

  /** Responses of earlier epochs to the group's prompt, the latest first. */
  past(group: Group): readonly Int32Array[] {
    const [request] = group.requests;
    return request === undefined ? [] : this.#history.past(this.#keyOf(group, request));
  }

  /** See LengthPrior: the longest response of the latest earlier epoch in which the prompt occurred. */
  readonly prior: LengthPrior = (request) => {
    const key = this.#keyOf(request.group, request);
    const lengths = this.#lengths.get(key);
    if (lengths === undefined) return null;
    this.#use(key, lengths);
    return lengths.epoch < this.#history.epoch ? lengths.longest : lengths.before;
  };

  get kept(): Kept {
    const { responses: count, usedBytes: bytes } = this.#history.stats();
    return { bytes, bytesMax: this.#options.limitBytes, count };
  }

  #sample(key: number, tokens: number): void {
    const { epoch } = this.#history;
    let lengths = this.#lengths.get(key) ?? { epoch, longest: 0, before: null };
    if (lengths.epoch < epoch) lengths = { epoch, longest: 0, before: lengths.longest };
    lengths.longest = Math.max(lengths.longest, tokens);
    this.#use(key, lengths);
  }

  #use(key: number, lengths: Lengths): void {
    this.#lengths.delete(key);
    this.#lengths.set(key, lengths);
    const [oldest] = this.#lengths.keys();
    const { promptsMax = PROMPTS_MAX } = this.#options;
    if (this.#lengths.size > promptsMax && oldest !== undefined) this.#lengths.delete(oldest);
  }

  /** All responses of a group are of one adapter (server/joinable-groups.ts). */
  #keyOf(group: Group, request: RolloutRequest): number {
    return this.#keys.getOrInsertComputed(group, () => {
      const scope = JSON.stringify([this.#options.model, request.spec.sampling.adapter ?? null]);
      return promptKey(group.prompt, scope);
    });
  }
}
