// What earlier weight epochs made of each prompt: their responses, as a draft source of engines with the plugin, and their
// lengths, as a prior for the scheduler. A history belongs to one model, and within it each adapter has its own.

import type { LengthPrior } from "../../core/context/context.ts";
import { History } from "../../core/draft/history.ts";
import type { Group, RolloutRequest } from "../../core/request/buffer.ts";
import { promptKey } from "../../core/request/prompt-key.ts";
import { isCut } from "../../core/request/request.ts";
import type { Kept } from "../kept.ts";
import { HistoryFile, type HistoryPlace, type HistoryRecord } from "./history-file.ts";
import { LengthHistory } from "./length-history.ts";

export interface PromptHistoryOptions {
  /** Limit of all responses together. */
  readonly limitBytes: number;
  /** The model's name. */
  readonly model: string;
}

const NO_TOKENS = new Int32Array(0);

export class PromptHistory {
  readonly #history: History;
  readonly #lengths = new LengthHistory();
  readonly #options: PromptHistoryOptions;
  /** Key of each group's prompt, computed once: a prompt may be long, and has many responses. */
  readonly #keys = new WeakMap<Group, number>();
  #file: HistoryFile | null = null;

  constructor(options: PromptHistoryOptions) {
    this.#options = options;
    this.#history = new History(options.limitBytes);
  }

  /** Loads the file, and appends to it from now on. @throws AppError invalid_config, as HistoryFile. */
  keepIn(place: HistoryPlace): void {
    this.#file = new HistoryFile({
      place,
      take: (record) => this.#load(record),
      kept: () => this.#records(),
      bytesMax: 2 * this.#options.limitBytes + 2 ** 20,
    });
    // Whatever is loaded is of an earlier epoch.
    this.advance();
  }

  /** Starts the next weight epoch: responses added from now on belong to it. */
  advance(epochs = 1): void {
    this.#history.advance(epochs);
    this.#lengths.advance(epochs);
  }

  /** Records a response that has ended. One that was given up is no sample of the prompt's lengths. */
  finished(request: RolloutRequest): void {
    const { response } = request;
    if (response.length === 0) return;
    const isWhole = !isCut(response.finish) && response.refusal === null;
    const length = isWhole ? response.length : 0;
    const key = this.#keyOf(request.group, request);
    if (length > 0) this.#lengths.finished(key, length);
    const tokens = this.#history.add(key, response.tokens());
    this.#file?.append({ key, epoch: this.#history.epoch, length, tokens });
  }

  /** Responses of earlier epochs to the group's prompt, the latest first. */
  past(group: Group): readonly Int32Array[] {
    const [request] = group.requests;
    return request === undefined ? [] : this.#history.past(this.#keyOf(group, request));
  }

  /** See LengthPrior. */
  readonly prior: LengthPrior = (request) =>
    this.#lengths.prior(this.#keyOf(request.group, request));

  get kept(): Kept {
    const { responses: count, usedBytes: bytes } = this.#history.stats();
    return { bytes, bytesMax: this.#options.limitBytes, count };
  }

  /** Resolves when the whole history is in its file. */
  async close(): Promise<void> {
    await this.#file?.close();
  }

  /** All responses of a group are of one adapter (server/joinable-groups.ts). */
  #keyOf(group: Group, request: RolloutRequest): number {
    return this.#keys.getOrInsertComputed(group, () => {
      const scope = JSON.stringify([this.#options.model, request.spec.sampling.adapter ?? null]);
      return promptKey(group.prompt, scope);
    });
  }

  #load({ key, epoch, length, tokens }: HistoryRecord): void {
    if (epoch > this.#history.epoch) this.advance(epoch - this.#history.epoch);
    if (length > 0) this.#lengths.finished(key, length);
    if (tokens.length > 0) this.#history.add(key, tokens);
  }

  /** The records in the order of their epochs, as they were appended. */
  #records(): HistoryRecord[] {
    const records: HistoryRecord[] = [];
    for (const { key, epoch, tokens } of this.#lengths.latest()) {
      records.push({ key, epoch, length: tokens, tokens: NO_TOKENS });
    }
    for (const { key, epoch, tokens } of this.#history.kept()) {
      records.push({ key, epoch, length: 0, tokens });
    }
    return records.sort((a, b) => a.epoch - b.epoch);
  }
}
