// Examines one engine by all checks, in order. Checks that can no longer run are left out; earlier findings stay.

import {
  checkChunks,
  checkLength,
  checkLogprobs,
  checkPrefixCache,
  checkPriority,
  checkSeeds,
  Refused,
  somePrompt,
} from "./behaviour-checks.ts";
import { Engine } from "./engine.ts";
import { CHUNKS, type Diagnosis, type Finding, fail } from "./finding.ts";
import { checkSampling } from "./sampling-check.ts";
import {
  checkEndpoints,
  checkFlags,
  checkKvBudget,
  checkPlugin,
  checkProxy,
  checkTrainerRoutes,
  checkVersion,
  readServerInfo,
  type ServerInfo,
} from "./settings-checks.ts";
import { examineSglang } from "./sglang-checks.ts";

export interface ExamineOptions {
  readonly url: string;
  /** null: none. */
  readonly token: string | null;
  /** Tokens that the test of sampling draws, at most. */
  readonly samplesMax: number;
  /** Salt of this examination, so that KV of another one is not found in the prefix cache. */
  readonly salt: string;
  /** Called when a check begins. */
  readonly began: (check: string) => void;
}

const PROMPT_TOKENS = 96;
const BLOCK_DEFAULT = 16;

export async function examine(options: ExamineOptions): Promise<Diagnosis> {
  const engine = new Engine(options.url, options.token);
  const proxy = await checkProxy(engine);
  if (proxy !== null) {
    return { url: engine.url, version: null, model: null, findings: [proxy] };
  }
  const sglang = await examineSglang(options);
  if (sglang !== null) return sglang;
  const findings: Finding[] = [];
  const server = await readServerInfo(engine, findings);
  if (server !== null) await look(engine, { server, findings, options });
  const version = server?.version ?? null;
  return { url: engine.url, version, model: engine.model, findings };
}

async function look(
  engine: Engine,
  parts: { server: ServerInfo; findings: Finding[]; options: ExamineOptions },
): Promise<void> {
  const { server, findings, options } = parts;
  findings.push(checkVersion(server), ...(await checkEndpoints(engine)), ...checkFlags(server));
  findings.push(
    ...checkPlugin(server),
    checkKvBudget(server),
    ...(await checkTrainerRoutes(engine, server)),
  );
  if (findings.some(({ verdict }) => verdict === "fail")) return;
  const prompt = await somePrompt(engine, PROMPT_TOKENS);
  const blockSize = server.metrics?.cache?.blockSize ?? BLOCK_DEFAULT;
  const long = await somePrompt(engine, 2 * blockSize + 1);
  const checks: readonly [string, () => Promise<Finding | Finding[]>][] = [
    ["stop tokens and lengths", () => checkLength(engine, prompt)],
    [CHUNKS, () => checkChunks(engine, prompt, server.metrics?.cache?.isHybrid === true)],
    ["seeds", async () => (server.isSeedSafe ? await checkSeeds(engine, prompt) : [])],
    ["logprobs", () => checkLogprobs(engine, prompt)],
    ["priorities", () => checkPriority(engine, prompt)],
    [
      "prefix cache",
      () => checkPrefixCache(engine, { prompt: long, blockSize, salt: options.salt }),
    ],
    [
      "sampling",
      () =>
        checkSampling(engine, {
          prompt,
          tokensMax: options.samplesMax,
          isSpeculative: server.isSpeculative,
          hasSeeds: server.isSeedSafe,
        }),
    ],
  ];
  for (const [check, run] of checks) {
    options.began(check);
    try {
      findings.push(...[await run()].flat());
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      findings.push(fail(check, error.message, "see the engine's log"));
    }
  }
}
