// `foretoken verify --vllm`: the ways of tools/verify/compare-servers.ts on a user's running servers, as a table.

import type { Settings } from "../config/fields.ts";
import { AppError } from "../core/base/errors.ts";
import { quantileOf } from "../core/base/quantile.ts";
import { tokenizedChat } from "../server/engine-calls.ts";
import { chatOf } from "../server/openai/messages.ts";
import type { Engine } from "../tools/doctor/engine.ts";
import {
  compareServers,
  openServer,
  type VerifyPrompt,
  type WayReport,
} from "../tools/verify/compare-servers.ts";
import { formatCount } from "./format.ts";
import { EXIT_FAILED, jsonOf, textTable } from "./output.ts";
import { loadPrompts, type PromptLine } from "./prompts.ts";

type Asked = Settings<"groupSize" | "limit" | "maxTokens" | "temperature" | "seed" | "slots"> &
  Settings<"chunkTokens" | "workerToken" | "json" | "quiet">;

export const SERVERS_HELP = `
With --vllm it asks running vLLM servers, with the plugin or without. It sends
each seeded prompt in six ways and compares them with "plain":
  plain    in one piece, without drafts
  again    the same, with other neighbours in the batch
  chunks   in pieces of --chunk-tokens, each a request of its own
  moves    the second half on another server (needs two URLs)
  drafts   the plugin drafts from siblings
  all      chunks, each on another server than the one before, with drafts
|dlogp| is the distance of logprobs before the first difference, in nats; "at" and
"gap" are the median place of that, and the largest distance of logprobs there.
"again" shows what batches change in the last bits of logits.
Chunks and drafts draw the same tokens where the plugin has \`exact\` set, or at
--temperature 0. It ends with 1 unless all responses are identical.

Examples:
  $ foretoken verify
  $ foretoken verify --vllm http://gpu-0:8000,http://gpu-1:8000 --max-tokens 512`;

/** Compares servers and prints a table. `given`: the option's value; true: it has none. @throws AppError usage, worker_failed. */
export async function verifyServers(
  given: string | true,
  path: string,
  settings: Asked,
): Promise<number> {
  const urls = given === true ? [] : given.split(",").map((url) => url.trim());
  const engines = await Promise.all(urls.map((url) => openServer(url, settings.workerToken)));
  const [first] = engines;
  const how = "give the URLs of running servers: --vllm http://gpu-0:8000,http://gpu-1:8000";
  if (first === undefined) throw new AppError("usage", how);
  const { limit, slots, temperature, maxTokens } = settings;
  const lines = await loadPrompts(path, { vocabularySize: Number.MAX_SAFE_INTEGER, limit });
  const prompts = await Promise.all(lines.map((line) => tokensOf(first, line)));
  const chunkTokens = settings.chunkTokens ?? maxTokens;
  const ways = await compareServers({ ...settings, chunkTokens, engines, prompts }, (way) => {
    if (!settings.quiet) console.warn(`${way} ...`);
  });
  if (settings.json) console.log(jsonOf({ servers: urls, slots, temperature, ways }));
  else if (!settings.quiet) console.log(tableOf(ways));
  return ways.every(({ differences }) => differences.length === 0) ? 0 : EXIT_FAILED;
}

/** The prompt's token ids, by the server's tokenizer. @throws AppError worker_failed: it has none. */
export async function tokensOf(
  engine: Pick<Engine, "tokenize" | "url">,
  { group, source }: PromptLine,
): Promise<VerifyPrompt> {
  const { id, prompt, messages, token_ids: given } = group;
  if (given) return { id, tokens: [...given] };
  const text = messages
    ? tokenizedChat(chatOf({ ...group, messages }, { source }))
    : JSON.stringify({ prompt });
  const tokens = await engine.tokenize(text);
  if (tokens.length > 0) return { id, tokens };
  throw new AppError("worker_failed", `${engine.url}/tokenize gives no tokens for prompt ${id}`);
}

function tableOf(ways: readonly WayReport[]): string {
  const head = ["", "identical", "tokens", "|dlogp| mean", "p99", "max"];
  const rows = ways.map(({ way, dlogp, differences, ...counts }) => [
    way,
    `${counts.identical_responses} of ${counts.responses}`,
    formatCount(counts.compared_tokens),
    ...[dlogp.mean, dlogp.p99, dlogp.max].map((nats) => nats.toPrecision(2)),
    String(
      quantileOf(
        differences.map(({ position }) => position),
        0.5,
      ) ?? "-",
    ),
    Math.max(0, ...differences.map(({ logprob_gap: gap }) => Math.abs(gap))).toPrecision(2),
    ...[counts.drafted_tokens, counts.accepted_tokens].map(formatCount),
  ]);
  return textTable([...head, "at", "gap", "drafted", "accepted"], rows);
}
