// The rows of vLLM and SGLang servers in the table of engines. A server under http:// may be either: a probe decides.

import type { EngineAccess, EngineKind } from "../kind.ts";
import { openVllmWorker } from "./open.ts";
import { ModelComparison, servedModel } from "./served-model.ts";

/**
 * Salt of the prefix caches. Servers and their caches outlive a sidecar, and an earlier run may have left KV of other
 * weights there under the same epoch.
 */
const RUN_SALT = `foretoken-${crypto.randomUUID()}`;

const RUN_SERVERS = new ModelComparison();

export const VLLM: EngineKind = {
  schemes: ["http", "https"],
  form: "http://HOST:PORT",
  server: { httpUrl: (url) => url, servedModel, mayDraft: true },
  opener,
};

const sglangUrl = (url: string) => url.replace(/^sglang:/i, "http:");

export const SGLANG: EngineKind = {
  schemes: ["sglang"],
  form: "sglang://HOST:PORT",
  server: {
    httpUrl: sglangUrl,
    servedModel: (url, token) => servedModel(sglangUrl(url), token),
    mayDraft: false,
  },
  opener: (url, access) => opener(sglangUrl(url), access, "sglang"),
};

function opener(
  url: string,
  { token: apiKey, notice }: EngineAccess,
  kind?: "sglang",
): ReturnType<EngineKind["opener"]> {
  const run = { cacheSalt: RUN_SALT, comparison: RUN_SERVERS };
  return (options) => openVllmWorker({ ...options, ...run, kind, url, apiKey, notice });
}
