// The rows of vLLM and SGLang servers in the table of engines. A server under http:// may be either: a probe decides.

import type { EngineKind } from "../kind.ts";
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
  opener: (url, access) => opener(url, access, {}),
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
  opener: (url, access) => opener(sglangUrl(url), access, { kind: "sglang" }),
};

function opener(
  url: string,
  { token, notice }: Parameters<EngineKind["opener"]>[1],
  known: { kind?: "sglang" },
): ReturnType<EngineKind["opener"]> {
  return (options) =>
    openVllmWorker({
      ...options,
      ...known,
      url,
      cacheSalt: RUN_SALT,
      comparison: RUN_SERVERS,
      apiKey: token,
      notice,
    });
}
