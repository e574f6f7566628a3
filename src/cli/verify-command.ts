// `foretoken verify`: shows on this machine that the full stack changes no token and no logprob, and prints what was
// compared (tools/verify); or on running servers (verify-servers.ts).

import { Command } from "commander";
import { enginesOf } from "../compose/engines.ts";
import type { Settings } from "../config/fields.ts";
import { BUNDLED_PROMPTS } from "../host/installation.ts";
import { compareRuns, type VerifyReport } from "../tools/verify/compare-runs.ts";
import { addFields, readFields, renamed } from "./commander-fields.ts";
import { operatorLog } from "./operator-log.ts";
import { EXIT_FAILED } from "./output.ts";
import { progressDisplay } from "./progress.ts";
import { checkRoom, loadPrompts, longestIn, planOfPrompts } from "./prompts.ts";
import { engineCount } from "./rollout-command.ts";
import { SERVERS_HELP, verifyServers } from "./verify-servers.ts";

const FIELD_NAMES = [
  "model",
  "llama",
  "slots",
  "kvTokens",
  "groupSize",
  "limit",
  "maxTokens",
  "temperature",
  "seed",
  "chunkTokens",
  "workerToken",
  "json",
  "quiet",
] as const;

type VerifySettings = Settings<(typeof FIELD_NAMES)[number]>;

/** Defaults that make most requests move and drafts pay: small chunks, few slots and little KV. */
const DEFAULTS = {
  llama: 3,
  slots: 4,
  kvTokens: 1024,
  limit: 8,
  maxTokens: 384,
  chunkTokens: 8,
} as const;

const DIFFERENCES_SHOWN = 5;

export function verifyCommand(setStatus: (status: number) => void): Command {
  const command = new Command("verify")
    .description(
      "Show that scheduling, moves and drafts change no token and no logprob, bit for bit.",
    )
    .argument("[prompts]", "prompts, one JSON object a line (default: the bundled ones)")
    .option("--vllm [URL,...]", "compare on running vLLM servers, http://HOST:PORT")
    .addOption(renamed("--workers", "llama"))
    .addHelpText("after", SERVERS_HELP);
  addFields(command, FIELD_NAMES, DEFAULTS);
  return command.action(async (given: string | undefined) => {
    const settings = readFields(command, FIELD_NAMES);
    const { vllm } = command.opts<{ vllm?: string | true }>();
    const prompts = given ?? BUNDLED_PROMPTS;
    const isRemote = vllm !== undefined;
    const run = isRemote ? verifyServers(vllm, prompts, settings) : verify(prompts, settings);
    setStatus(await run);
  });
}

async function verify(path: string, settings: VerifySettings): Promise<number> {
  const { limit, kvTokens, slots, chunkTokens, quiet } = settings;
  const files = { ...settings, worker: [], workerToken: null, tokenizer: null };
  // Right drafts and wrong ones, as many as possible: this is a check, not a race.
  const engines = (count: number, slots: number) => {
    const embedded = { count, slots, kvTokens, deterministic: true, draftsAlways: true };
    const log = operatorLog(
      () => {},
      () => {},
    );
    return enginesOf({ ...files, servedModelName: null, embedded }, log);
  };
  const full = engines(engineCount(settings.llama), slots);
  const wait = { tried: () => {}, signal: new AbortController().signal };
  const model = await full.model(wait, () => []);
  try {
    const lines = await loadPrompts(path, { vocabularySize: model.text.vocabularySize, limit });
    const prompts = { ...settings, path, lines, model };
    const plan = await planOfPrompts(prompts);
    const longest = longestIn(plan);
    const report = await compareRuns({
      model,
      chunkTokens,
      plan: async ({ sidecar }) => {
        checkRoom(plan, prompts, sidecar.rollout.workers);
        return plan;
      },
      full: full.sources(model, longest),
      // One slot: an engine that never sees two requests, nor a chunk, nor a draft.
      alone: engines(1, 1).sources(model, longest),
      display: (title) => progressDisplay({ title, quiet }),
    });
    if (settings.json) console.log(JSON.stringify(report, null, 2));
    else if (!settings.quiet) console.log(describe(report));
    return report.equal_requests === report.requests ? 0 : EXIT_FAILED;
  } finally {
    model.llama?.close();
  }
}

function describe(report: VerifyReport): string {
  const { full_stack: full, alone } = report;
  const verdict = report.equal_requests === report.requests ? "bit for bit equal" : "NOT EQUAL";
  const lines = [
    `${report.equal_requests} of ${report.requests} responses (${report.compared_tokens} tokens, logprobs included): ${verdict}`,
    `  full stack: ${full.workers.length} workers, ${full.chunks} chunks, ${report.moved_requests} requests moved, ` +
      `${full.migrations} migrations, ${full.drafted_tokens} tokens drafted, ${full.accepted_tokens} accepted, ` +
      `${full.preemptions} preemptions, ${full.wall_s.toFixed(1)} s`,
    `  alone:      one engine, one request at a time, ${alone.wall_s.toFixed(1)} s`,
    ...report.differences.slice(0, DIFFERENCES_SHOWN).map((difference) => `  ${difference}`),
  ];
  return lines.join("\n");
}
