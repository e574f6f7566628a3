// What the probe has found of a server, as findings: version, flags, routes, KV. Nothing is generated.

import type { Capabilities } from "../../engines/vllm/dialect.ts";
import { ENDPOINT_PATHS } from "../../engines/vllm/dialect.ts";
import { type Engine, fieldOf, listOf, pathOf } from "./engine.ts";
import { type Finding, fail, info, ok, warn } from "./finding.ts";

export const ENDPOINT = "token ids in and out";

/** Findings about a server of any kind. */
export function checkCapabilities(found: Capabilities): Finding[] {
  const { endpoint, warnings, kvTokens, kvBlockTokens, slots, contextTokens } = found;
  const full = Math.floor(kvTokens / contextTokens);
  const { preemptions } = found.metrics.counters;
  const sizes = `${kvTokens} tokens in blocks of ${kvBlockTokens}; ${slots} slots`;
  const fits = `${full} requests of full length (${contextTokens}) fit`;
  const budget = `${sizes}; ${fits}; ${preemptions} preemptions so far`;
  return [
    ok(ENDPOINT, ENDPOINT_PATHS[endpoint]),
    info("KV budget", budget),
    ...warnings.map((message) => {
      const [reason = message, ...fix] = message.split(": ");
      return warn("settings", reason, fix.join(": ") || "see docs/VLLM.md");
    }),
  ];
}

/** Minor version of the oldest release with RL routes; `RELEASE_RUN`: of the newest that these checks were run against. */
const RELEASE_MIN = 22;
const RELEASE_RUN = 32;

export function checkVersion({ version }: Pick<Capabilities, "version">): Finding {
  const [, major, minor] = /^(\d+)\.(\d+)/.exec(version ?? "") ?? [];
  if (major === undefined)
    return warn("version", "it reports no version", "use vLLM 0.22 or newer");
  const release = Number(major) * 1000 + Number(minor);
  const text = `vLLM ${version}`;
  if (release < RELEASE_MIN)
    return fail("version", `${text} has no RL routes`, "use 0.22 or newer");
  if (release > RELEASE_RUN)
    return info("version", `${text}, newer than what this was tested with`);
  return ok("version", text);
}

/** Reports the model runner of vLLM under which the plugin drafts; no finding without the plugin. */
export function checkPlugin({
  config,
  version,
}: Pick<Capabilities, "config" | "version">): Finding[] {
  const model = String(pathOf(config, "speculative_config", "model"));
  if (!model.startsWith("foretoken_vllm.")) return [];
  const isAsync = pathOf(config, "scheduler_config", "async_scheduling") === true;
  const steps = isAsync ? "asynchronous scheduling" : "synchronous steps";
  if (model === "foretoken_vllm.speculator") {
    return [ok("plugin", `it drafts under vLLM's second model runner, with ${steps}`)];
  }
  const why = "python -m foretoken_vllm.runner_v2 --choose";
  if (pathOf(config, "device_config", "device") !== "cpu") {
    const reason =
      "it drafts nothing on a GPU under vLLM's first model runner, which is deprecated";
    return [warn("plugin", reason, `the second one (docs/PLUGIN.md; ${why})`)];
  }
  const reason = `it drafts under vLLM's first model runner, with ${steps}: vLLM ${version} has no Triton there`;
  return [info("plugin", `${reason}, or another second runner than the plugin knows (${why})`)];
}

export function checkFlags({ config }: Pick<Capabilities, "config">): Finding[] {
  if (config === undefined) return [];
  const findings: Finding[] = [];
  const dtype = String(pathOf(config, "model_config", "dtype") ?? "unknown").replace("torch.", "");
  const device = String(pathOf(config, "device_config", "device") ?? "unknown");
  const executor = String(pathOf(config, "parallel_config", "distributed_executor_backend"));
  const setup = `${dtype} on ${device}, executor ${executor}`;
  if (device === "cpu" && dtype === "bfloat16") {
    const ends = `${setup}: ends silently if the first prompt is very short`;
    findings.push(warn("number format", ends, "--dtype float32"));
  } else findings.push(info("number format", setup));
  const generation = pathOf(config, "model_config", "generation_config");
  const defaults = "sampling defaults";
  const reason = "the model's generation_config.json sets what a client leaves out (top_p, ...)";
  const isOwn = generation === "vllm";
  findings.push(
    isOwn ? ok(defaults, "vLLM's own") : warn(defaults, reason, "--generation-config vllm"),
  );
  return findings;
}

const CONTROL_ROUTES = [
  ...["/pause", "/resume", "/is_paused", "/abort_requests", "/sleep", "/wake_up", "/is_sleeping"],
  ...["/reset_prefix_cache", "/collective_rpc", "/get_world_size", "/init_weight_transfer_engine"],
  ...["/start_weight_update", "/update_weights", "/finish_weight_update"],
];

export async function checkTrainerRoutes(
  engine: Engine,
  { config }: Pick<Capabilities, "config">,
): Promise<Finding[]> {
  // A GET of a POST route that exists is answered with 405.
  const answers = await Promise.all(CONTROL_ROUTES.map((path) => engine.call("GET", path)));
  const routesWith = (...statuses: readonly number[]) =>
    CONTROL_ROUTES.filter((_, i) => statuses.includes(answers[i]?.status ?? 0)).join(" ");
  const silent = routesWith(0);
  const missing = routesWith(403, 404);
  const check = "control routes";
  const findings: Finding[] = [];
  if (silent !== "") findings.push(warn(check, `no answer: ${silent}`, "try again"));
  if (missing !== "") findings.push(warn(check, `missing: ${missing}`, "VLLM_SERVER_DEV_MODE=1"));
  if (findings.length === 0) findings.push(ok(check, `all ${CONTROL_ROUTES.length} are available`));
  if (config === undefined) {
    const reason = "no /server_info: TRL's client stops, and the flags cannot be seen";
    return [...findings, warn("TRL's client", reason, "VLLM_SERVER_DEV_MODE=1")];
  }
  if (pathOf(config, "weight_transfer_config") == null) {
    const reason = "/server_info has no weight_transfer_config: TRL's client stops at its start";
    const fix = `on GPUs: --weight-transfer-config '{"backend":"nccl"}'; on CPU: reload_weights by path`;
    return [...findings, warn("TRL's client", reason, fix)];
  }
  return [...findings, ok("TRL's client", "finds all that it requests")];
}

const RENDER_PATH = "/v1/chat/completions/render";

/** Reports whether the engine renders chats as prompts. */
export async function checkChats(engine: Engine): Promise<Finding> {
  const messages = [{ role: "user", content: "Hello" }];
  const { status, body } = await engine.call("POST", RENDER_PATH, { messages, max_tokens: 1 });
  const tokens = listOf(fieldOf(body, "token_ids")).length;
  if (tokens > 0) return ok("chats", "it renders them: prompts are what its own template makes");
  if (status === 400) return info("chats", `it refuses them: ${textOf(body)}`);
  const reason = `no ${RENDER_PATH} (HTTP ${status}): the sidecar makes their prompts, by the model's template`;
  return info("chats", reason);
}

/** The message in an error's body, or the body itself. */
function textOf(body: unknown): string {
  const message = pathOf(body, "error", "message");
  return typeof message === "string" ? message : JSON.stringify(body);
}

const CONNECTOR = "KV connector";

export function checkConnector({ connector: found }: Pick<Capabilities, "connector">): Finding {
  if (found === null) {
    return info(CONNECTOR, "none: a request that moves to another server is prefilled there again");
  }
  const { className, row, savesOutput, problem, fix, mixesWeights } = found;
  if (problem !== null) {
    const description = `${className}: ${problem}`;
    const how = fix ?? "start it without --kv-transfer-config";
    return mixesWeights ? fail(CONNECTOR, description, how) : warn(CONNECTOR, description, how);
  }
  const saved = savesOutput ? "prompts and generated tokens" : "prompts";
  const seen = row?.wasRun === true ? "" : "; not run by this project";
  const description = `${className} keeps ${saved} in a store that all servers share${seen}`;
  if (savesOutput || row?.outputSetting === undefined) return ok(CONNECTOR, description);
  const [key, value] = row.outputSetting;
  const lacking = `${description}: what a request has generated is prefilled again when it moves`;
  return warn(CONNECTOR, lacking, `kv_connector_extra_config {"${key}": ${value}}`);
}
