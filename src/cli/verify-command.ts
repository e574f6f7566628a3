// `foretoken verify`: shows on this machine that the full stack changes no token and no logprob, and prints what was
// compared (tools/verify); or on running servers (verify-servers.ts).

import { Option } from "commander";
import { EngineSources } from "../compose/engines.ts";
import { operatorLog } from "../compose/operator-log.ts";
import { PROMPT_FIELDS, type Settings } from "../config/fields.ts";
import { BUNDLED_PROMPTS } from "../host/installation.ts";
import { compareRuns, type VerifyReport } from "../tools/verify/compare-runs.ts";
import { commandOf } from "./command.ts";
import { EXIT_FAILED } from "./output.ts";
import { progressDisplay } from "./progress.ts";
import { checkRoom, loadPrompts, longestIn, planOfPrompts } from "./prompts.ts";
import { engineCount } from "./rollout-command.ts";
import { SERVERS_HELP, verifyServers } from "./verify-servers.ts";

const ENGINE_FIELDS = [
  "model",
  "llama",
  "slots",
  "kvTokens",
  "chunkTokens",
  "workerToken",
] as const;
const FIELD_NAMES = [...ENGINE_FIELDS, ...PROMPT_FIELDS, "json", "quiet"] as const;

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

const VLLM = new Option("--vllm [URL,...]", "compare on running vLLM servers, http://HOST:PORT");

export const verifyCommand = commandOf({
  name: "verify",
  description:
    "Show that scheduling, moves and drafts change no token and no logprob, bit for bit.",
  takes: ["[prompts]", "prompts, one JSON object a line (default: the bundled ones)"],
  help: SERVERS_HELP,
  fields: FIELD_NAMES,
  defaults: DEFAULTS,
  options: [VLLM],
  run: (settings, [prompts = BUNDLED_PROMPTS], command) => {
    const { vllm } = command.opts<{ vllm?: string | true }>();
    return vllm === undefined ? verify(prompts, settings) : verifyServers(vllm, prompts, settings);
  },
});

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
    return new EngineSources({ ...files, servedModelName: null, embedded }, log);
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
