// What is known of the model that all engines have: from files of this machine, or from the first server that answers.

import { existsSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { assert } from "../core/base/assert.ts";
import { AppError, errorText } from "../core/base/errors.ts";
import type { ListedModel } from "../engines/kind.ts";
import { serverOf } from "../engines/kinds.ts";
import { type LlamaModel, type LlamaWorkerOptions, openLlamaModel } from "../engines/llama/open.ts";
import { BUNDLED_MODEL } from "../host/installation.ts";
import type { EngineAddress } from "../server/worker-registry.ts";
import type { EncoderThread } from "../text/encoder.ts";
import {
  eosTokensOf,
  openHuggingFaceText,
  openHuggingFaceThread,
  vocabularySizeOf,
} from "../text/hugging-face.ts";
import { IdText, VOCABULARY_UNKNOWN } from "../text/id-text.ts";
import type { Text } from "../text/text.ts";

/** The model that all engines have, as far as the server needs to know it. */
export interface ModelSide {
  readonly text: Text;
  /** Opens a thread that encodes as `text` does; null: engines encode, as no tokenizer can be read here. */
  readonly openTextThread: (() => EncoderThread) | null;
  /** Tokens that end a response; the first is the EOS proper. Empty: only the engines know them. */
  readonly eosTokenIds: readonly number[];
  readonly names: readonly [string, ...string[]];
  /** GGUF model, opened for embedded engines or for its text alone; null: the text has files of its own. */
  readonly llama: LlamaModel | null;
}

export interface EngineSettings {
  /** URLs of the engines. */
  readonly worker: readonly string[];
  /** Token for the engines named here; null: none. */
  readonly workerToken: string | null;
  /** Hugging Face directory of the tokenizer; null: an engine's own, or that of the GGUF file. */
  readonly tokenizer: string | null;
  readonly servedModelName: string | null;
  /** GGUF file of the model; null: the bundled one, if any is needed. */
  readonly model: string | null;
  /** Settings of embedded engines; null: there are none. */
  readonly embedded: EmbeddedSettings | null;
}

type EmbeddedOptions = Omit<LlamaWorkerOptions, "workerId" | "epoch">;

export interface EmbeddedSettings extends Omit<EmbeddedOptions, "contextTokens"> {
  readonly count: number;
  readonly deterministic: boolean;
}

export interface ModelWait {
  /** Called after every attempt in which no server reported its model, with each server's problem; empty: no server is left. */
  readonly tried: (problems: readonly string[]) => void;
  /** Ends the wait, which then throws the signal's reason. */
  readonly signal: AbortSignal;
}

type ModelSettings = Omit<EngineSettings, "worker" | "workerToken">;

/**
 * Reads files of this machine at once. `engines`: remote ones; more may be added during the wait. If only a server knows
 * the rest (its model's name and folder), it waits until one answers.
 * @throws AppError: no file can be read, or the model's tokenizer cannot be determined.
 */
export async function openModelSide(
  { embedded, model, tokenizer, servedModelName: servedName }: ModelSettings,
  engines: () => readonly EngineAddress[],
  wait: ModelWait,
): Promise<ModelSide> {
  const { count: llamaCount, deterministic } = embedded ?? { count: 0, deterministic: false };
  const servers = () => engines().filter(({ url }) => serverOf(url) !== null);
  const isOurs = () => servers().length < engines().length || llamaCount > 0;
  const needsFile =
    llamaCount > 0 || model !== null || (tokenizer === null && servers().length === 0);
  const open = async () => await openLlamaModel({ path: model ?? BUNDLED_MODEL, deterministic });
  let llama = needsFile ? await open() : null;
  try {
    let side = tokenizer === null ? null : folderSide(tokenizer, llama);
    const isKnown = (side ?? llama) !== null && servedName !== null;
    const served = await anyServed(servers, { ...wait, isNeeded: () => !isOurs() && !isKnown });
    if (side === null && llama === null) {
      const folder = localFolder(served?.root ?? null);
      if (folder !== null) side = folderSide(folder, null);
      else if (served !== null)
        side = { text: new IdText(), openTextThread: null, eosTokenIds: [] };
      // Engines that name no model serve the bundled one unless another one was named.
      else if (served === null) llama = await open();
    }
    const names = namesOf(servedName, served?.id ?? null);
    if (side !== null) return { ...side, names, llama };
    assert(llama !== null, "a model that no server named is opened here");
    const { info, text } = llama;
    const eosTokenIds = some([...new Set([info.eosTokenId, ...info.stopTokenIds])], info.path);
    return { text, openTextThread: () => text.openThread(), eosTokenIds, names, llama };
  } catch (error) {
    llama?.close();
    throw error;
  }
}

function folderSide(
  folder: string,
  llama: LlamaModel | null,
): Pick<ModelSide, "text" | "openTextThread" | "eosTokenIds"> {
  if (llama === null && !hasTokenizer(folder) && existsSync(join(folder, "config.json"))) {
    // A tokenizer of another kind, as tiktoken's: ids are served, and texts by the engines that have it.
    const size = vocabularySizeOf(folder);
    const text = new IdText(size > 0 ? size : VOCABULARY_UNKNOWN);
    return { text, openTextThread: null, eosTokenIds: eosTokensOf(folder) };
  }
  const sizeMin = llama?.text.vocabularySize;
  return {
    text: openHuggingFaceText(folder, sizeMin),
    openTextThread: () => openHuggingFaceThread(folder, sizeMin),
    eosTokenIds: some(eosTokensOf(folder), folder),
  };
}

function some(tokens: readonly number[], where: string): readonly [number, ...number[]] {
  const [first, ...rest] = tokens;
  if (first === undefined) throw new AppError("model_unreadable", `${where}: no token ends a text`);
  return [first, ...rest];
}

const DEFAULT_NAME = "foretoken";

function namesOf(given: string | null, served: string | null): readonly [string, ...string[]] {
  const first = given ?? served ?? DEFAULT_NAME;
  return served !== null && served !== first ? [first, served] : [first];
}

function localFolder(root: string | null): string | null {
  if (root === null) return null;
  return hasTokenizer(root) || existsSync(join(root, "config.json")) ? root : null;
}

function hasTokenizer(folder: string): boolean {
  return existsSync(join(folder, "tokenizer.json"));
}

const RETRY_MS = 250;
const RETRY_MS_MAX = 5_000;

/**
 * The model that the first answering server reports; null: there is no server, or none answers and no model is needed.
 * Both are checked before every attempt, because workers come and go during the wait.
 */
async function anyServed(
  engines: () => readonly EngineAddress[],
  wait: ModelWait & { isNeeded: () => boolean },
): Promise<ListedModel | null> {
  if (engines().length === 0 && !wait.isNeeded()) return null;
  for (let pauseMs = RETRY_MS; ; pauseMs = Math.min(RETRY_MS_MAX, pauseMs * 2)) {
    try {
      return await Promise.any(
        engines().flatMap(({ url, token }) => serverOf(url)?.servedModel(url, token) ?? []),
      );
    } catch (error) {
      const problems = error instanceof AggregateError ? error.errors : [error];
      wait.tried(problems.map(errorText));
    }
    if (!wait.isNeeded()) return null;
    await sleep(pauseMs, undefined, { signal: wait.signal }).catch(() => {
      throw wait.signal.reason;
    });
  }
}
