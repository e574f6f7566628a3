// Examines one engine by all checks, in order. Checks that can no longer run are left out; earlier findings stay.

import { AppError, type ErrorCode } from "../../core/base/errors.ts";
import type { Capabilities } from "../../engines/vllm/dialect.ts";
import { VLLM_DIALECT } from "../../engines/vllm/vllm.ts";
import {
  checkChunks,
  checkLength,
  checkLogprobs,
  checkPrefixCache,
  checkSeeds,
  Refused,
  somePrompt,
} from "./behaviour-checks.ts";
import type { Engine } from "./engine.ts";
import { CHUNKS, type Diagnosis, type Finding, fail } from "./finding.ts";
import { checkSampling } from "./sampling-check.ts";
import {
  checkCapabilities,
  checkChats,
  checkConnector,
  checkFlags,
  checkPlugin,
  checkTrainerRoutes,
  checkVersion,
  ENDPOINT,
} from "./settings-checks.ts";

export interface ExamineOptions {
  /** Maximum number of tokens that the sampling test draws. */
  readonly samplesMax: number;
  /** Salt of this examination's requests, so that they do not find KV of another one in the prefix cache. */
  readonly salt: string;
  /** Called when a check begins. */
  readonly began: (check: string) => void;
}

const PROMPT_TOKENS = 96;

/** Examines an engine, beginning with the probe that opens a worker: an engine that fails it cannot take part in a rollout. */
export async function examine(engine: Engine, options: ExamineOptions): Promise<Diagnosis> {
  options.began(ENDPOINT);
  const probed = await engine.probe().catch((error: unknown) => {
    if (error instanceof AppError) return error;
    throw error;
  });
  if (probed instanceof AppError) {
    const reason = probed.message.replace(`${engine.url} `, "");
    const finding = fail("health", reason, FIXES[probed.code] ?? "see docs/VLLM.md");
    return { url: engine.url, version: null, model: null, findings: [finding] };
  }
  const { capabilities } = probed;
  const findings = checkCapabilities(capabilities);
  const checks = await checksOf(engine, { findings, capabilities, options });
  await carryOut(checks, findings, options.began);
  const { version, model } = capabilities;
  return { url: engine.url, version, model, findings };
}

const FIXES: Partial<Record<ErrorCode, string>> = {
  worker_failed: "start it, or give its URL: http://HOST:PORT; see its log",
  unauthorized: "give --worker-token",
  invalid_config: "start it with other settings, or give another URL",
};

type Checks = readonly [string, () => Promise<Finding | Finding[]>][];

async function checksOf(
  engine: Engine,
  parts: { findings: Finding[]; capabilities: Capabilities; options: ExamineOptions },
): Promise<Checks> {
  const { findings, capabilities, options } = parts;
  // The probe has divided a response of a hybrid model.
  const chunks: Checks = capabilities.isDivisible ? [[CHUNKS, () => checkChunks(engine)]] : [];
  findings.push(await checkChats(engine));
  if (engine.server.dialect !== VLLM_DIALECT) return chunks;
  findings.push(
    checkVersion(capabilities),
    ...checkFlags(capabilities),
    checkConnector(capabilities),
    ...checkPlugin(capabilities),
    ...(await checkTrainerRoutes(engine, capabilities)),
  );
  if (findings.some(({ verdict }) => verdict === "fail")) return [];
  const { kvBlockTokens: blockSize, hasSeeds, isSpeculative } = capabilities;
  const prompt = await somePrompt(engine, PROMPT_TOKENS);
  const long = await somePrompt(engine, 2 * blockSize + 1);
  const { salt, samplesMax: tokensMax } = options;
  return [
    ["stop tokens and lengths", () => checkLength(engine, prompt)],
    ...chunks,
    ["seeds", async () => (hasSeeds ? await checkSeeds(engine, prompt) : [])],
    ["logprobs", () => checkLogprobs(engine, prompt)],
    ["prefix cache", () => checkPrefixCache(engine, { prompt: long, blockSize, salt })],
    ["sampling", () => checkSampling(engine, { prompt, tokensMax, isSpeculative, hasSeeds })],
  ];
}

async function carryOut(
  checks: Checks,
  findings: Finding[],
  began: (check: string) => void,
): Promise<void> {
  for (const [check, run] of checks) {
    began(check);
    try {
      findings.push(...[await run()].flat());
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      findings.push(fail(check, error.message, "see the engine's log"));
    }
  }
}
