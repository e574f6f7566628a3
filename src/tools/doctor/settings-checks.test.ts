import { expect, test } from "bun:test";
import { Engine } from "./engine.ts";
import type { Finding } from "./finding.ts";
import {
  checkChats,
  checkFlags,
  checkPlugin,
  checkTrainerRoutes,
  checkVersion,
} from "./settings-checks.ts";

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
  const verdict = (version: string | null) => checkVersion({ version }).verdict;
  expect(verdict("0.21.9")).toBe("fail");
  expect(verdict("0.22.0")).toBe("ok");
  expect(verdict("0.32.1")).toBe("ok");
  expect(verdict("0.33.0")).toBe("info");
  expect(verdict("1.0")).toBe("info");
  expect(verdict(null)).toBe("warn");
});

test("checkChats: says who makes prompts of chats", async () => {
  const path = "/v1/chat/completions/render";
  const refusal = Response.json({ error: { message: "no chat template" } }, { status: 400 });
  const found = async (route: Response | object) => {
    const { verdict, reason } = await against({ [path]: route }, checkChats);
    return [verdict, reason];
  };
  expect(await found({ token_ids: [1] })).toEqual(["ok", expect.stringContaining("it renders")]);
  expect(await found(refusal)).toEqual(["info", "it refuses them: no chat template"]);
  const missing = Response.json({}, { status: 404 });
  expect(await found(missing)).toEqual(["info", expect.stringContaining(`no ${path} (HTTP 404)`)]);
});

test("checkPlugin: names the runner that the plugin drafts under, and nothing without the plugin", () => {
  const found = (model: string | null, isAsync: boolean, device = "cpu") => {
    const speculation = model === null ? null : { model };
    const config = {
      speculative_config: speculation,
      scheduler_config: { async_scheduling: isAsync },
      device_config: { device },
    };
    return checkPlugin({ config, version: "0.32.0" }).map(({ verdict, reason }) => [
      verdict,
      reason,
    ]);
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

test("checkFlags: bfloat16 on CPU and the model's own sampling defaults are warnings", () => {
  const flags = (dtype: string, generation: string) =>
    checkFlags({
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

test("checkTrainerRoutes: what is missing is named", async () => {
  const routes = { "/pause": new Response("", { status: 405 }), "/sleep": {} };
  const findings = await against(routes, (engine) => checkTrainerRoutes(engine, {}));
  const missing = named(findings, "control routes");
  expect(missing?.verdict).toBe("warn");
  expect(missing?.reason).toContain("/collective_rpc");
  expect(missing?.reason).not.toContain("/pause ");
  // One without an answer is not called missing.
  const nobody = new Engine("http://127.0.0.1:9/", null);
  const silent = named(await checkTrainerRoutes(nobody, {}), "control routes");
  expect(silent?.reason).toMatch(/^no answer: \/pause /);
});
