// Examines an SGLang server: what a worker finds out when it is opened on it, and whether a divided response is the same.

import { AppError, errorText } from "../../core/base/errors.ts";
import { wallTimers } from "../../engines/vllm/clock.ts";
import type { Capabilities } from "../../engines/vllm/dialect.ts";
import { dividedCheck } from "../../engines/vllm/divided-check.ts";
import { HttpClient } from "../../engines/vllm/http.ts";
import { VLLM_LIMITS } from "../../engines/vllm/limits.ts";
import { findEngine } from "../../engines/vllm/open.ts";
import { type SglangServer, sglangServer } from "../../engines/vllm/sglang/server.ts";
import {
  CHUNKS,
  chunksFinding,
  type Diagnosis,
  type Finding,
  fail,
  info,
  ok,
  warn,
} from "./finding.ts";

const FIX =
  "compare --dtype float32 and another --attention-backend, without --speculative-algorithm";

/** null: it is not SGLang. */
export async function examineSglang(options: {
  url: string;
  token: string | null;
  salt: string;
  began: (check: string) => void;
}): Promise<Diagnosis | null> {
  const { url, token, salt, began } = options;
  const limits = VLLM_LIMITS;
  const { answerBytesMax, checkMsMax } = limits;
  const client = new HttpClient({ url, apiKey: token, clock: wallTimers, answerBytesMax });
  try {
    const server = await sglangServer((path) => client.get(path, checkMsMax));
    if (server === null) return null;
    began("token ids in and out");
    const access = { client, clock: wallTimers, limits, cacheSalt: salt };
    const found = await findEngine(access, "sglang").catch((error: unknown) => {
      if (error instanceof AppError) return error.message;
      throw error;
    });
    if (typeof found === "string") {
      const finding = fail("token ids in and out", found, "see the engine's log");
      return diagnosisOf(client.url, server, [finding]);
    }
    began(CHUNKS);
    const { dialect, capabilities } = found;
    const chunks = await dividedCheck({ ...access, dialect, form: capabilities }).then(
      (divided) => chunksFinding(divided, FIX, server.isHybrid),
      (error: unknown) => fail(CHUNKS, errorText(error), "see the engine's log"),
    );
    return diagnosisOf(client.url, server, [...settingsOf(server, capabilities), chunks]);
  } finally {
    client.close();
  }
}

function settingsOf(server: SglangServer, found: Capabilities): Finding[] {
  const seeds = server.isDeterministic
    ? ok("seeds", "a response is drawn by its seed, chunks and moves included")
    : info("seeds", "it draws without the request's seed (--enable-deterministic-inference)");
  const budget = `${found.kvTokens} tokens of KV, ${found.slots} requests, ${found.contextTokens} tokens each`;
  const endpoint = `/generate of SGLang ${found.version ?? ""}: token ids with logprobs`;
  return [
    ok("token ids in and out", endpoint),
    ok("KV budget", budget),
    seeds,
    ...found.warnings.map((message) => {
      const [reason = message, fix = "see docs/TRAINERS.md"] = message.split(": ");
      return warn("settings", reason, fix);
    }),
  ];
}

function diagnosisOf(url: string, server: SglangServer, findings: readonly Finding[]): Diagnosis {
  const { version, model } = server;
  return { url, version, model, findings };
}
