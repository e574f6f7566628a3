import { expect, test } from "bun:test";
import { readMetrics } from "../../engines/vllm/metrics.ts";
import { Engine } from "./engine.ts";
import type { Finding } from "./finding.ts";
import {
  checkFlags,
  checkKvBudget,
  checkPlugin,
  checkTrainerRoutes,
  checkVersion,
  readServerInfo,
  type ServerInfo,
} from "./settings-checks.ts";

const SERVER: ServerInfo = {
  version: "0.32.0",
  config: undefined,
  metrics: null,
  contextTokens: 2100,
  isSpeculative: false,
  isSeedSafe: true,
};

/** An engine that answers GET as `routes` say, and 404 elsewhere. */
async function against<T>(
  routes: Readonly<Record<string, Response | object>>,
  act: (engine: Engine) => Promise<T>,
): Promise<T> {
  const server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    fetch(request) {
      const route = routes[new URL(request.url).pathname];
      if (route === undefined) return new Response("{}", { status: 404 });
      return route instanceof Response ? route : Response.json(route);
    },
  });
  try {
    return await act(new Engine(`http://127.0.0.1:${server.port}/`, null));
  } finally {
    await server.stop(true);
  }
}

const named = (findings: readonly Finding[], check: string) =>
  findings.find((finding) => finding.check === check);

test("checkVersion: too old, known, and newer than known", () => {
  const verdict = (version: string | null) => checkVersion({ ...SERVER, version }).verdict;
  expect(verdict("0.21.9")).toBe("fail");
  expect(verdict("0.22.0")).toBe("ok");
  expect(verdict("0.32.1")).toBe("ok");
  expect(verdict("0.33.0")).toBe("info");
  expect(verdict("1.0")).toBe("info");
  expect(verdict(null)).toBe("warn");
});

test("checkPlugin: names the runner that the plugin drafts under, and nothing without the plugin", () => {
  const found = (model: string | null, isAsync: boolean, device = "cpu") => {
    const speculation = model === null ? null : { model };
    const config = {
      speculative_config: speculation,
      scheduler_config: { async_scheduling: isAsync },
      device_config: { device },
    };
    return checkPlugin({ ...SERVER, config }).map(({ verdict, reason }) => [verdict, reason]);
  };
  expect(found(null, false)).toEqual([]);
  expect(found("ngram", false)).toEqual([]);
  expect(found("foretoken_vllm.speculator", true)).toEqual([
    ["ok", "it drafts under vLLM's second model runner, with asynchronous scheduling"],
  ]);
  expect(found("foretoken_vllm.proposer.ForetokenProposer", false)).toEqual([
    ["info", expect.stringContaining("first model runner, with synchronous steps: vLLM 0.32.0")],
  ]);
  expect(found("foretoken_vllm.proposer.ForetokenProposer", false, "cuda")).toEqual([
    ["warn", expect.stringContaining("it drafts nothing on a GPU")],
  ]);
});

test("checkFlags: a server that a seed may end gets the flag as fix", () => {
  const config = { device_config: { device: "cpu" }, model_config: { dtype: "torch.float32" } };
  const seeds = named(checkFlags({ ...SERVER, config, isSeedSafe: false }), "seeds");
  expect(seeds?.verdict).toBe("warn");
  expect(seeds?.fix).toBe("--no-enable-chunked-prefill");
  expect(named(checkFlags({ ...SERVER, config }), "seeds")).toBeUndefined();
});

test("checkFlags: bfloat16 on CPU and the model's own sampling defaults are warnings", () => {
  const flags = (dtype: string, generation: string) =>
    checkFlags({
      ...SERVER,
      config: {
        device_config: { device: "cpu" },
        model_config: { dtype, generation_config: generation },
      },
    });
  const bad = flags("torch.bfloat16", "auto");
  expect(named(bad, "number format")?.verdict).toBe("warn");
  expect(named(bad, "sampling defaults")?.fix).toBe("--generation-config vllm");
  const good = flags("torch.float32", "vllm");
  expect(named(good, "number format")?.verdict).toBe("info");
  expect(named(good, "sampling defaults")?.verdict).toBe("ok");
});

test("checkFlags: a rule that accepts what the model would not draw is a failure", () => {
  const verdict = (method: string) => {
    const config = { speculative_config: { rejection_sample_method: method } };
    return named(checkFlags({ ...SERVER, config }), "verification")?.verdict;
  };
  for (const method of ["fly", "synthetic"]) expect(verdict(method)).toBe("fail");
  for (const method of ["standard", "block"]) expect(verdict(method)).toBeUndefined();
});

test("checkKvBudget: blocks, slots and full requests, from the metrics", () => {
  const metrics = readMetrics(
    [
      'vllm:cache_config_info{block_size="128",num_gpu_blocks="10",num_cpu_blocks="None"} 1.0',
      'vllm:num_preemptions_total{engine="0"} 3.0',
    ].join("\n"),
  );
  const config = { scheduler_config: { max_num_seqs: 64 } };
  expect(checkKvBudget({ ...SERVER, metrics, config, contextTokens: 500 }).reason).toBe(
    "1280 tokens in 10 blocks of 128; 64 slots; 2 requests of full length fit; 3 preemptions so far",
  );
  expect(checkKvBudget(SERVER).verdict).toBe("warn");
});

test("readServerInfo: what is not there, and what serves no model, is a failure with a fix", async () => {
  const findings: Finding[] = [];
  expect(await readServerInfo(new Engine("http://127.0.0.1:1", null), findings)).toBeNull();
  await against({ "/health": {}, "/v1/models": { data: [] } }, (engine) =>
    readServerInfo(engine, findings),
  );
  expect(findings.map(({ verdict }) => verdict)).toEqual(["fail", "fail"]);
  expect(findings.every(({ fix }) => fix !== null)).toBe(true);
});

test("checkTrainerRoutes: what is missing is named", async () => {
  const routes = { "/pause": new Response("", { status: 405 }), "/sleep": {} };
  const findings = await against(routes, (engine) => checkTrainerRoutes(engine, SERVER));
  const missing = named(findings, "control routes");
  expect(missing?.verdict).toBe("warn");
  expect(missing?.reason).toContain("/collective_rpc");
  expect(missing?.reason).not.toContain("/pause ");
});
