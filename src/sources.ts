// Where workers come from, and what is known of their model: the part of the wiring that names every kind.

import { existsSync } from "node:fs";
import { join } from "node:path";
import { BUNDLED_MODEL, wallClock } from "./app.ts";
import { AppError } from "./base/errors.ts";
import type { BudgetName } from "./draft/budget.ts";
import type { WorkerSource } from "./server/worker-pool.ts";
import { eosTokensOf } from "./text/eos.ts";
import { openHuggingFaceText } from "./text/hugging-face.ts";
import type { Text } from "./text/text.ts";
import { newIdentity, openLinkWorker } from "./worker/link/worker.ts";
import { type LlamaModel, openLlamaModel } from "./worker/llama/open.ts";
import { wallTimers } from "./worker/vllm/clock.ts";
import { KEPT_BYTES_MAX, KvShare } from "./worker/vllm/kv-share.ts";
import { openVllmWorker } from "./worker/vllm/open.ts";
import type { VllmNotice } from "./worker/vllm/worker.ts";

/**
 * Servers outlive a sidecar, and their caches with them: what an earlier run left there may be of other weights
 * under the same epoch.
 */
const RUN_SALT = `foretoken-${crypto.randomUUID()}`;

/** All vLLM servers of this process are of one run. */
const RUN_KV = new KvShare({ clock: wallTimers, bytesMax: KEPT_BYTES_MAX });

/** Embedded engines on one model. */
export function llamaSources(
  model: LlamaModel,
  options: {
    count: number;
    slots: number;
    kvTokens: number;
    contextTokens: number;
    draftBudget: BudgetName;
  },
): WorkerSource[] {
  const { count, ...capacity } = options;
  return Array.from({ length: count }, (_, index) => ({
    name: `embedded engine ${index}`,
    keepsWeights: false,
    open: async ({ workerId, epoch }) => {
      const [worker] = await model.openWorkers({
        workers: 1,
        firstWorkerId: workerId,
        epoch,
        ...capacity,
      });
      if (worker === undefined) throw new AppError("worker_failed", "no engine was opened");
      return worker;
    },
  }));
}

export interface RemoteOptions {
  /** Sent to the engine; null: none. */
  readonly token: string | null;
  readonly notice: (url: string, notice: VllmNotice) => void;
}

/** A vLLM server (`http:`, `https:`), or a worker of ours on another machine (`ws:`, `wss:`). */
export function remoteSource(url: string, options: RemoteOptions): WorkerSource {
  const scheme = URL.canParse(url) ? new URL(url).protocol : null;
  switch (scheme) {
    case "http:":
    case "https:":
      return vllmSource(url, options);
    case "ws:":
    case "wss:":
      return linkSource(url, options);
    default:
      throw new AppError("usage", `--worker is "${url}"; it is http://HOST:PORT or ws://HOST:PORT`);
  }
}

function vllmSource(url: string, { token, notice }: RemoteOptions): WorkerSource {
  return {
    name: url,
    keepsWeights: true,
    open: ({ workerId, epoch }) =>
      openVllmWorker({
        workerId,
        url,
        epoch,
        cacheSalt: RUN_SALT,
        kvShare: RUN_KV,
        ...(token === null ? {} : { apiKey: token }),
        notice: (told) => notice(url, told),
      }),
  };
}

function linkSource(url: string, { token }: RemoteOptions): WorkerSource {
  // One for all sessions of this source: a new one takes the place of the last, should the host still have it.
  const sidecar = newIdentity();
  return {
    name: url,
    keepsWeights: true,
    open: async ({ workerId, epoch, reach }) => {
      const worker = await openLinkWorker({
        workerId,
        url,
        clock: wallClock,
        reach,
        sidecar,
        ...(token === null ? {} : { token }),
      });
      // A host that served another sidecar before counts from its own epochs.
      if (worker.epoch !== epoch) worker.send([{ kind: "advance", epoch }]);
      return worker;
    },
  };
}

/** What the edge must know of the model that all engines have. */
export interface ModelSide {
  readonly text: Text;
  /** The first is the EOS proper. */
  readonly eosTokenIds: readonly [number, ...number[]];
  readonly names: readonly [string, ...string[]];
  /** Opened for embedded engines, or for its text alone; null: the text has files of its own. */
  readonly llama: LlamaModel | null;
}

export interface ModelOptions {
  readonly urls: readonly string[];
  readonly llamaCount: number;
  /** GGUF file. */
  readonly model: string | null;
  /** Hugging Face directory. */
  readonly tokenizer: string | null;
  readonly servedName: string | null;
  readonly deterministic: boolean;
  readonly token: string | null;
}

/** @throws AppError: no file there can be read, or there is nothing that says how the model writes. */
export async function openModelSide(options: ModelOptions): Promise<ModelSide> {
  const { urls, llamaCount, model, tokenizer, servedName, deterministic } = options;
  const served = await firstServed(urls, options.token);
  const names = namesOf(servedName, served?.id ?? null);
  const needsFile = llamaCount > 0 || model !== null || (served === null && tokenizer === null);
  const llama = needsFile
    ? await openLlamaModel({ path: model ?? BUNDLED_MODEL, deterministic })
    : null;
  const folder = tokenizer ?? (llama === null ? localFolder(served?.root ?? null) : null);
  if (folder !== null) {
    return {
      text: openHuggingFaceText(folder, llama?.text.vocabularySize),
      eosTokenIds: some(eosTokensOf(folder), folder),
      names,
      llama,
    };
  }
  if (llama === null) {
    throw new AppError(
      "invalid_config",
      `the model's files (${served?.root ?? "unknown"}) are not on this machine: give --tokenizer DIR`,
    );
  }
  const eosTokenIds = some([...new Set([llama.eosTokenId, ...llama.stopTokenIds])], llama.path);
  return { text: llama.text, eosTokenIds, names, llama };
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
  return root !== null && existsSync(join(root, "tokenizer.json")) ? root : null;
}

interface Served {
  readonly id: string;
  readonly root: string | null;
}

/** What the first vLLM server calls its model; null: there is no such server, or it does not say. */
async function firstServed(urls: readonly string[], token: string | null): Promise<Served | null> {
  const url = urls.find((one) => one.startsWith("http"));
  if (url === undefined) return null;
  const headers: Record<string, string> =
    token === null ? {} : { authorization: `Bearer ${token}` };
  try {
    const answer = await fetch(`${url.replace(/\/$/, "")}/v1/models`, { headers });
    const body = (await answer.json()) as { data?: { id?: unknown; root?: unknown }[] };
    const first = body.data?.[0];
    if (typeof first?.id !== "string") return null;
    return { id: first.id, root: typeof first.root === "string" ? first.root : null };
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new AppError("worker_failed", `${url} does not answer: ${reason}`, { cause });
  }
}
