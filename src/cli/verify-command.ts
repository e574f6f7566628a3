// `foretoken verify`: shows on this machine that the full stack changes no token and no logprob. The
// same requests run twice on portable kernels: scheduled, divided, moved and drafted over several
// engines; and each alone on one undisturbed engine. Everything must be equal, bit for bit.

import { Command } from "commander";
import { runIteration } from "../app.ts";
import type { Settings } from "../config/fields.ts";
import { present } from "../core/base/assert.ts";
import { weightEpoch } from "../core/base/ids.ts";
import type { Group, GroupSpec, Request } from "../core/request/buffer.ts";
import type { RunReport } from "../core/rollout/report.ts";
import {
  type LlamaModel,
  type LlamaWorkersOptions,
  openLlamaModel,
} from "../engines/llama/open.ts";
import { BUNDLED_MODEL, BUNDLED_PROMPTS } from "../host/installation.ts";
import { addFields, readFields } from "./commander-fields.ts";
import { EXIT_FAILED } from "./exit.ts";
import { groupsOf } from "./job.ts";
import { ProgressDisplay } from "./progress.ts";
import { loadPrompts } from "./prompts.ts";

const FIELD_NAMES = [
  "model",
  "workers",
  "slots",
  "kvTokens",
  "groupSize",
  "limit",
  "maxTokens",
  "temperature",
  "seed",
  "chunkTokens",
  "json",
  "quiet",
] as const;

type VerifySettings = Settings<(typeof FIELD_NAMES)[number]>;

/** Small chunks, few slots and little KV, so that most requests move and drafts pay. */
const DEFAULTS = {
  workers: 3,
  slots: 4,
  kvTokens: 1024,
  limit: 8,
  maxTokens: 384,
  chunkTokens: 8,
} as const;

const POOL_BYTES = 256 * 1024 * 1024;
const DIFFERENCES_SHOWN = 5;

/** What `--json` prints. */
export interface VerifyReport {
  readonly requests: number;
  readonly equal_requests: number;
  readonly compared_tokens: number;
  /** Requests whose chunks ran on more than one worker. */
  readonly moved_requests: number;
  readonly differences: readonly string[];
  readonly full_stack: RunReport;
  readonly alone: RunReport;
}

export function verifyCommand(setStatus: (status: number) => void): Command {
  const command = new Command("verify")
    .description(
      "Show that scheduling, moves and drafts change no token and no logprob, bit for bit.",
    )
    .argument("[prompts]", "prompts, one JSON object a line (default: the bundled ones)");
  addFields(command, FIELD_NAMES, DEFAULTS);
  return command.action(async (prompts: string | undefined) => {
    setStatus(await verify(prompts ?? BUNDLED_PROMPTS, readFields(command, FIELD_NAMES)));
  });
}

async function verify(promptsPath: string, settings: VerifySettings): Promise<number> {
  const model = await openLlamaModel({
    path: settings.model ?? BUNDLED_MODEL,
    deterministic: true,
  });
  try {
    const { vocabularySize, contextTokens, stopTokenIds } = model;
    const prompts = await loadPrompts(promptsPath, { vocabularySize, limit: settings.limit });
    const groups = groupsOf(prompts, {
      path: promptsPath,
      ...settings,
      contextTokens,
      vocabularySize,
      stopTokenIds,
      text: model.text,
    });
    const report = await compareRuns(model, groups, settings);
    if (settings.json) console.log(JSON.stringify(report, null, 2));
    else if (!settings.quiet) console.log(describe(report));
    return report.equal_requests === report.requests ? 0 : EXIT_FAILED;
  } finally {
    model.close();
  }
}

async function compareRuns(
  model: LlamaModel,
  groups: readonly GroupSpec[],
  settings: VerifySettings,
): Promise<VerifyReport> {
  const { workers, slots, kvTokens, chunkTokens, quiet } = settings;
  const full = await runOnce(model, groups, {
    title: "full stack",
    quiet,
    shape: { workers, slots, kvTokens, chunkTokens, policy: "seer", draft: "grouped" },
  });
  // One slot: an engine that never sees two requests, nor a chunk, nor a draft.
  const alone = await runOnce(model, groups, {
    title: "alone",
    quiet,
    shape: { workers: 1, slots: 1, kvTokens, chunkTokens, policy: "group", draft: "off" },
  });
  const differences: string[] = [];
  let equal = 0;
  let tokens = 0;
  let moved = 0;
  for (const [id, request] of full.requests) {
    const other = present(alone.requests.get(id), "both runs have the same requests");
    const difference = differenceOf(request, other);
    if (difference === null) equal += 1;
    else differences.push(`${request.spec.groupId} ${request.spec.sampleIndex}: ${difference}`);
    tokens += request.response.length;
    if (new Set(request.response.chunks.map((chunk) => chunk.workerId)).size > 1) moved += 1;
  }
  return {
    requests: full.requests.size,
    equal_requests: equal,
    compared_tokens: tokens,
    moved_requests: moved,
    differences,
    full_stack: full.report,
    alone: alone.report,
  };
}

async function runOnce(
  model: LlamaModel,
  groups: readonly GroupSpec[],
  options: {
    title: string;
    quiet: boolean;
    shape: Pick<Parameters<typeof runIteration>[0], "chunkTokens" | "policy" | "draft"> &
      Pick<LlamaWorkersOptions, "workers" | "slots" | "kvTokens">;
  },
): Promise<{ report: RunReport; requests: Map<number, Request> }> {
  const requests = new Map<number, Request>();
  const display = new ProgressDisplay({
    stream: process.stderr,
    title: options.title,
    quiet: options.quiet,
  });
  try {
    const { workers, slots, kvTokens, ...shape } = options.shape;
    const epoch = weightEpoch(0);
    // Right drafts and wrong ones, paths and trees, as many as possible: this is a check, not a race.
    const capacity = { workers, slots, kvTokens, draftBudget: "always", epoch } as const;
    const report = await runIteration({
      ...shape,
      openWorkers: (contextTokens) => model.openWorkers({ ...capacity, contextTokens }),
      deterministic: model.deterministic,
      epoch,
      groups,
      poolMemoryBytes: POOL_BYTES,
      poolDiskBytes: 0,
      poolDir: null,
      onGroup: (group: Group) => {
        for (const request of group.requests) requests.set(request.spec.requestId, request);
      },
      onFailed: ({ response }) => display.note(`failed: ${response.refusal?.message}`),
      onProgress: (progress) => display.update(progress),
      signal: new AbortController().signal,
    });
    return { report, requests };
  } finally {
    display.finish();
  }
}

/** What first differs between two responses to the same request; null: nothing. */
function differenceOf(a: Request, b: Request): string | null {
  const tokens = [a.response.tokens(), b.response.tokens()] as const;
  const bits = [bitsOf(a.response.logprobs()), bitsOf(b.response.logprobs())] as const;
  for (let i = 0; i < Math.max(tokens[0].length, tokens[1].length); i += 1) {
    if (tokens[0][i] !== tokens[1][i]) {
      return `token ${i} is ${tokens[0][i] ?? "absent"}, alone it is ${tokens[1][i] ?? "absent"}`;
    }
    if (bits[0][i] !== bits[1][i]) return `the logprob of token ${i} differs`;
  }
  if (a.response.finish !== b.response.finish) return "the finish reasons differ";
  return null;
}

function bitsOf(values: Float32Array): Uint32Array {
  return new Uint32Array(values.buffer, values.byteOffset, values.length);
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
