// SGLang's dialect, and the probe of a server's capabilities.

import { AppError } from "../../../core/base/errors.ts";
import type { Capabilities, EngineDialect, RequestForm, ServerAccess, Watch } from "../dialect.ts";
import { hybridProblem } from "../divided-check.ts";
import { problemIn } from "../http.ts";
import { readEvent } from "../stream-event.ts";
import { proveServing } from "../trial.ts";
import { SLOTS_DEFAULT } from "../vllm.ts";
import { ridOf, sglangBody, sglangSupport } from "./body.ts";
import { flushCache, sglangControl } from "./control.ts";
import { npyOfRows, sglangPiece } from "./event.ts";
import { pollSglang, type SglangServer, sglangServer } from "./server.ts";

export interface SglangCapabilities extends Capabilities {
  readonly sglang: SglangServer;
}

export const SGLANG_DIALECT = {
  probe,
  body: sglangBody,
  read: (data, topLogprobs) => readEvent(data, topLogprobs, sglangPiece),
  // SGLang looks for connections that are closed seconds later, and runs the request meanwhile.
  abort: (chunk) => ({
    method: "POST",
    path: "/abort_request",
    body: JSON.stringify({ rid: ridOf(chunk) }),
  }),
  takesAborts: true,
  control: (client, { sglang }: SglangCapabilities) => sglangControl(client, sglang),
  watch: ({ sglang }: SglangCapabilities): Watch => ({
    poll: async (get) => {
      const { answer, metrics } = await pollSglang(get, sglang);
      const problem = metrics === null ? `${sglang.loadPath}: ${problemIn(answer)}` : null;
      return { answer, problem, metrics };
    },
    versionPath: sglang.modelPath,
    // Its /health generates a token, which it cannot while it is paused.
    healthPath: sglang.loadPath,
  }),
  supports: sglangSupport,
  experts: npyOfRows,
  emptyCache: flushCache,
} satisfies EngineDialect;

/** SGLang itself has no limit. */
const TOP_LOGPROBS_MAX = 20;

/** @throws AppError worker_failed: the server generates no tokens, or reports no KV. */
async function probe(access: ServerAccess): Promise<SglangCapabilities | null> {
  const { client, limits } = access;
  const get = (path: string) => client.get(path, limits.checkMsMax);
  const sglang = await sglangServer(get);
  if (sglang === null) return null;
  const form = await formOf(access, sglang);
  const { answer, metrics } = await pollSglang(get, sglang);
  if (metrics === null) {
    const problem = `${sglang.loadPath}: ${problemIn(answer)}`;
    throw new AppError("worker_failed", `${client.url}${problem}`);
  }
  const { kvTokens, contextTokens, slots, model, dtype, quantization } = sglang;
  if (kvTokens < 1 || contextTokens < 2) {
    const field = kvTokens < 1 ? "max_total_num_tokens" : "max_req_input_len";
    throw new AppError("worker_failed", `${client.url}${sglang.infoPath} lacks ${field}`);
  }
  const server = { ...access, dialect: SGLANG_DIALECT, form };
  const hybrid = sglang.isHybrid ? await hybridProblem(server) : null;
  return {
    ...sglang,
    ...form,
    traits: { model, max_model_len: contextTokens, dtype, quantization },
    slots: slots ?? SLOTS_DEFAULT,
    ranks: 1,
    isDivisible: hybrid === null,
    // The flag stands for vLLM's drafting, which some sampling parameters do not go with.
    isSpeculative: false,
    connector: null,
    metrics,
    sglang,
    warnings: [
      ...(sglang.hasPriorities ? [] : [UNORDERED]),
      ...(form.hasStreamSettings ? [] : [INTERVAL]),
      ...(sglang.dpSize > 1 ? [RANKS] : []),
      ...(hybrid === null ? [] : [hybrid]),
    ],
  };
}

const UNORDERED = "no priorities: the tail is served first with --enable-priority-scheduling";
const INTERVAL =
  "it repeats a response's tokens in each event, and takes no stream_interval: --incremental-streaming-output, or --stream-interval 32";
const RANKS =
  "it has data parallel ranks and places each chunk itself, so that little of its prefix may be found";

/** Finds the best form of requests by trials, from the newest releases to the oldest. */
async function formOf(access: ServerAccess, sglang: SglangServer): Promise<RequestForm> {
  const problems: string[] = [];
  for (const [hasStreamSettings, hasSeeds] of [
    [true, true],
    [false, true],
    [false, false],
  ] as const) {
    const form: RequestForm = {
      endpoint: "sglang",
      model: sglang.model,
      hasPriorities: sglang.hasPriorities,
      highestFirst: sglang.highestFirst,
      logprobsMax: TOP_LOGPROBS_MAX,
      hasStreamSettings,
      hasSeeds,
    };
    const server = { ...access, dialect: SGLANG_DIALECT, form };
    const tried = await proveServing(server, { msMax: access.limits.startMsMax });
    if (tried.kind === "made") return form;
    // A release that does not know a sampling parameter breaks the connection.
    problems.push(tried.message);
  }
  const why = [...new Set(problems)].join("; ");
  throw new AppError("worker_failed", `${access.client.url}/generate makes no tokens: ${why}`);
}
