// The model that the data plane serves, as its clients know it: names, adapters, texts of tokens, room in the context.

import { AppError } from "../../core/base/errors.ts";
import type { WeightEpoch } from "../../core/base/ids.ts";
import type { Text } from "../../text/text.ts";
import { invalid } from "../route.ts";
import { indexBeyond, type TokenList } from "./fields.ts";
import { numberedNames, type TokenNames, writtenNames } from "./json.ts";

export interface ServedModelOptions {
  readonly text: Text;
  /** Whether texts of tokens are known here; false: only engines know them. Default: true. */
  readonly hasText?: boolean;
  /** Names under which clients may ask for the model; the first is the one in answers. */
  readonly modelNames: readonly [string, ...string[]];
  /** Adapters that are served under their names. Default: none. */
  readonly adapters?: () => ReadonlySet<string>;
  /** Tokens that end a response unless `ignore_eos`; the first is the EOS proper. */
  readonly eosTokenIds: readonly number[];
  /** The name of the weights of an epoch, as the trainer gave it. */
  readonly version: (epoch: WeightEpoch) => string;
}

export class ServedModel {
  readonly text: Text;
  readonly hasText: boolean;
  readonly eosTokenIds: readonly number[];
  readonly version: (epoch: WeightEpoch) => string;
  readonly writtenNames: TokenNames;
  readonly numberedNames: TokenNames;
  readonly #options: ServedModelOptions;
  readonly #contextTokens: () => number;
  readonly #startedS = Math.floor(Date.now() / 1000);

  /** `contextTokens`: infinite where no worker is in service. */
  constructor(options: ServedModelOptions, contextTokens: () => number) {
    this.#options = options;
    this.#contextTokens = contextTokens;
    this.text = options.text;
    this.hasText = options.hasText ?? true;
    this.eosTokenIds = options.eosTokenIds;
    this.version = options.version;
    this.writtenNames = writtenNames(options.text);
    this.numberedNames = numberedNames(options.text);
  }

  get name(): string {
    return this.#options.modelNames[0];
  }

  /** Room for a prompt and its response; null: no worker is in service. */
  get contextTokens(): number | null {
    const tokens = this.#contextTokens();
    return Number.isFinite(tokens) ? tokens : null;
  }

  /** The model's name in answers to a client that used this name. */
  answeredName(model: string | null | undefined): string {
    return this.adapterOf(model) ?? this.name;
  }

  /** The adapter that a client means; null: none. @throws AppError not_found for a model that is not served here. */
  adapterOf(model: string | null | undefined): string | null {
    if (model === null || model === undefined) return null;
    if (this.#options.modelNames.includes(model)) return null;
    if (this.#options.adapters?.().has(model)) return model;
    throw new AppError("not_found", `The model \`${model}\` does not exist.`);
  }

  /** Checks a prompt's tokens against the vocabulary. @throws InvalidFieldError naming `field`. */
  promptOf(tokens: TokenList, field: string): Int32Array {
    if (tokens.length === 0) throw invalid(field, "holds no tokens");
    const { vocabularySize } = this.text;
    const wrong = indexBeyond(tokens, vocabularySize);
    if (wrong >= 0) {
      throw invalid(field, `holds token ${tokens[wrong]}, not in 0..${vocabularySize - 1}`);
    }
    return new Int32Array(tokens);
  }

  cards(): object[] {
    const { modelNames, adapters } = this.#options;
    return [...modelNames, ...(adapters?.() ?? [])].map((id) => this.card(id));
  }

  /** The entry of GET /v1/models/:id. @throws AppError as `adapterOf`. */
  card(id: string): object {
    return {
      id,
      object: "model",
      created: this.#startedS,
      owned_by: "foretoken",
      root: this.name,
      parent: this.adapterOf(id) === null ? null : this.name,
      max_model_len: this.contextTokens,
      permission: [],
    };
  }
}
