// Checks what an engine reports about itself: version, flags, routes, KV. Nothing is generated.

import { connectorOf } from "../../engines/vllm/connectors.ts";
import { ENDPOINT_PATHS } from "../../engines/vllm/dialect.ts";
import { readMetrics, type ServerMetrics } from "../../engines/vllm/metrics.ts";
import { isLossy } from "../../engines/vllm/vllm.ts";
import { type Answer, type Engine, fieldOf, listOf, messageOf, pathOf } from "./engine.ts";
import { type Finding, fail, info, ok, warn } from "./finding.ts";

export interface ServerInfo {
  readonly version: string | null;
  /** /server_info of development mode; undefined: not available. */
  readonly config: unknown;
  /** null: no /metrics. */
  readonly metrics: ServerMetrics | null;
  readonly contextTokens: number | null;
  readonly isSpeculative: boolean | null;
  /** The server survives a request with a seed, whatever else runs. */
  readonly isSeedSafe: boolean;
}

/** @returns null: it cannot be examined; why is in `findings`. */
export async function readServerInfo(
  engine: Engine,
  findings: Finding[],
): Promise<ServerInfo | null> {
  const version = fieldOf((await engine.call("GET", "/version")).body, "version");
  const health = await engine.call("GET", "/health");
  if (health.status !== 200) {
    const why = health.status === 0 ? messageOf(health.text) : `HTTP ${health.status}`;
    findings.push(fail("health", `/health: ${why}`, "start it, or give its URL: http://HOST:PORT"));
    return null;
  }
  const models = await engine.call("GET", "/v1/models");
  const model = listOf(fieldOf(models.body, "data")).find((one) => fieldOf(one, "parent") == null);
  const id = fieldOf(model, "id");
  if (typeof id !== "string") {
    const fix = models.status === 401 ? "give --worker-token" : "serve a model with it";
    findings.push(fail("health", `/v1/models: HTTP ${models.status}, no model`, fix));
    return null;
  }
  engine.model = id;
  const information = await engine.call("GET", "/server_info?config_format=json");
  const config = information.status === 200 ? fieldOf(information.body, "vllm_config") : undefined;
  const answer = await engine.call("GET", "/metrics");
  const metrics = answer.status === 200 ? readMetrics(answer.text) : null;
  const context = fieldOf(model, "max_model_len");
  const speculative = fieldOf(config, "speculative_config");
  return {
    version: typeof version === "string" ? version : null,
    config,
    metrics,
    contextTokens: typeof context === "number" ? context : null,
    isSpeculative: speculative === undefined ? null : speculative !== null,
    isSeedSafe: !(
      pathOf(config, "device_config", "device") === "cpu" &&
      pathOf(config, "scheduler_config", "enable_chunked_prefill") === true
    ),
  };
}

/**
 * A sidecar answers as vLLM and SGLang do, but it computes nothing: its workers are what can be examined. null: it is
 * none.
 */
export async function checkProxy(engine: Engine): Promise<Finding | null> {
  const release = (await engine.call("GET", "/version")).body;
  if (fieldOf(release, "server") !== "foretoken") return null;
  const version = String(fieldOf(release, "version"));
  const { body } = await engine.call("GET", "/foretoken/workers");
  const names = listOf(fieldOf(body, "workers")).map((one) => String(fieldOf(one, "name")));
  const urls = names.filter((name) => /^https?:/.test(name));
  const reason = `it is Foretoken ${version}, a proxy in front of ${names.length} workers: ${names.join(", ")}`;
  const fix = urls.length > 0 ? `foretoken doctor ${urls.join(" ")}` : "give a vLLM server's URL";
  return fail("server", reason, fix);
}

/** The minor numbers of the oldest release with RL routes, and of the newest that these checks were run against. */
const [RELEASE_MIN, RELEASE_RUN] = [22, 32];

export function checkVersion({ version }: ServerInfo): Finding {
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
export function checkPlugin({ config, version }: ServerInfo): Finding[] {
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

/** A route exists if it answers GET with 405, or anything but 403 and 404. */
async function hasRoute(engine: Engine, path: string): Promise<Answer & { isThere: boolean }> {
  const answer = await engine.call("GET", path);
  return { ...answer, isThere: ![0, 403, 404].includes(answer.status) };
}

export async function checkEndpoints(engine: Engine): Promise<Finding[]> {
  const check = "token ids in and out";
  const generate = await hasRoute(engine, ENDPOINT_PATHS.generate);
  if (generate.isThere) {
    engine.endpoint = "generate";
    return [ok(check, ENDPOINT_PATHS.generate)];
  }
  const completions = await hasRoute(engine, ENDPOINT_PATHS.completions);
  if (completions.isThere) {
    engine.endpoint = "completions";
    const why = `/inference/v1/generate answers ${generate.status}; /v1/completions is used`;
    const fix = "vllm serve --enable-scale-out (before 0.32: VLLM_ENABLE_SCALE_OUT_ENDPOINTS=1)";
    return [warn(check, why, fix)];
  }
  const neither = "it has neither /inference/v1/generate nor /v1/completions";
  return [fail(check, neither, "use vllm serve")];
}

export function checkFlags({ config, isSeedSafe }: ServerInfo): Finding[] {
  if (config === undefined) return [];
  const findings: Finding[] = [];
  if (!isSeedSafe) {
    const reason =
      "on CPU it ends (CPU Generator does not use offset) when a prompt is split over two steps and its request has a seed; none is sent, so that nothing can be repeated";
    findings.push(warn("seeds", reason, "--no-enable-chunked-prefill"));
  }
  const dtype = String(pathOf(config, "model_config", "dtype") ?? "unknown").replace("torch.", "");
  const device = String(pathOf(config, "device_config", "device") ?? "unknown");
  const executor = String(pathOf(config, "parallel_config", "distributed_executor_backend"));
  const setup = `${dtype} on ${device}, executor ${executor}`;
  if (device === "cpu" && dtype === "bfloat16") {
    const ends = `${setup}: ends silently if the first prompt is very short`;
    findings.push(warn("number format", ends, "--dtype float32"));
  } else findings.push(info("number format", setup));
  const accepts = pathOf(config, "speculative_config", "rejection_sample_method");
  if (isLossy(accepts)) {
    const reason = `rejection_sample_method ${accepts} changes the distribution that is sampled`;
    findings.push(fail("verification", reason, 'start it with "standard" or "block"'));
  }
  const generation = pathOf(config, "model_config", "generation_config");
  const defaults = "sampling defaults";
  const reason = "the model's generation_config.json sets what a client leaves out (top_p, ...)";
  const isOwn = generation === "vllm";
  findings.push(
    isOwn ? ok(defaults, "vLLM's own") : warn(defaults, reason, "--generation-config vllm"),
  );
  return [...findings, checkConnector(config)];
}

export function checkKvBudget(server: ServerInfo): Finding {
  const { metrics, contextTokens } = server;
  const cache = metrics?.cache;
  if (metrics === null || cache == null)
    return warn("KV budget", "not in /metrics", "do not disable log stats");
  const tokens = cache.blocks * cache.blockSize;
  const slots = Number(pathOf(server.config, "scheduler_config", "max_num_seqs")) || null;
  const { preemptions } = metrics.counters;
  const full = contextTokens === null ? null : Math.floor(tokens / contextTokens);
  const text = `${tokens} tokens in ${cache.blocks} blocks of ${cache.blockSize}; ${slots ?? "?"} slots; ${full ?? "?"} requests of full length fit; ${preemptions} preemptions so far`;
  return info("KV budget", text);
}

const CONTROL_ROUTES = [
  ...["/pause", "/resume", "/is_paused", "/abort_requests", "/sleep", "/wake_up", "/is_sleeping"],
  ...["/reset_prefix_cache", "/collective_rpc", "/get_world_size", "/init_weight_transfer_engine"],
  ...["/start_weight_update", "/update_weights", "/finish_weight_update"],
];

export async function checkTrainerRoutes(
  engine: Engine,
  { config }: ServerInfo,
): Promise<Finding[]> {
  const there = await Promise.all(
    CONTROL_ROUTES.map(async (path) => ({ path, ...(await hasRoute(engine, path)) })),
  );
  const missing = there.filter(({ isThere }) => !isThere).map(({ path }) => path);
  const findings = [
    missing.length === 0
      ? ok("control routes", `all ${CONTROL_ROUTES.length} are available`)
      : warn("control routes", `missing: ${missing.join(" ")}`, "VLLM_SERVER_DEV_MODE=1"),
  ];
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

const CONNECTOR = "KV connector";

/** `config`: vllm_config of /server_info. */
export function checkConnector(config: unknown): Finding {
  const found = connectorOf(config);
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
  if (savesOutput || row?.outputSetting == null) return ok(CONNECTOR, description);
  const [key, value] = row.outputSetting;
  const lacking = `${description}: what a request has generated is prefilled again when it moves`;
  return warn(CONNECTOR, lacking, `kv_connector_extra_config {"${key}": ${value}}`);
}
