// The control calls of AReaL and SGLang: each is answered in the client's own form by what a call of vLLM does.

import { expect, test } from "bun:test";
import { ControlFixture as Fixture, type Script } from "../../test/suite/control-fixture.ts";
import { weightEpoch } from "../core/base/ids.ts";

const failing: Script = () => ({ status: 500, body: { error: { message: "no such file" } } });

/** All engines answer calls by the script from now on. */
function answering(fixture: Fixture, script: Script): void {
  for (const i of [0, 1, 2]) fixture.worker(i).script = script;
}

test("areal: pause ends all requests as they stand, continue lets new ones run", async () => {
  const fixture = await Fixture.open();
  const requests = fixture.ask(4);
  await fixture.steps(3);
  const paused = await fixture.call("POST", "/areal_pause_generation", {});
  expect([paused.status, paused.body]).toMatchObject([200, { success: true }]);
  expect(requests.map(({ response }) => response.finish)).toEqual(Array(4).fill("abort"));
  const [waiting] = fixture.ask(1);
  await fixture.steps(3);
  expect(waiting?.response.length).toBe(0);
  const continued = await fixture.call("POST", "/areal_continue_generation", {});
  expect(continued.body).toMatchObject({ success: true });
  await fixture.steps(80);
  expect(waiting?.response.finish).toBe("stop");
});

test.each([
  ["/areal_update_weights", { model_path: "/w/1", load_format: "auto" }],
  ["/update_weights_from_disk", { model_path: "/w/1", flush_cache: true, weight_version: "s7" }],
])("%s: every engine reloads from the path, under the next epoch", async (path, body) => {
  const fixture = await Fixture.open();
  const answer = await fixture.call("POST", path, body);
  expect([answer.status, answer.body]).toMatchObject([200, { success: true }]);
  for (const i of [0, 1, 2]) {
    expect(fixture.worker(i).heard).toMatchObject([{ kind: "load", path: "/w/1" }]);
  }
  expect(fixture.sidecar.rollout.epoch).toBe(weightEpoch(1));
  const version = await fixture.call("GET", "/get_weight_version");
  expect(version.body).toEqual({ weight_version: "weight_version" in body ? "s7" : "1" });
});

test.each(["/areal_update_weights", "/update_weights_from_disk"])(
  "%s: an engine that fails is named, and a path that is missing",
  async (path) => {
    const fixture = await Fixture.open();
    answering(fixture, failing);
    const failed = await fixture.call("POST", path, { model_path: "/w/1" });
    expect(failed.status).toBeGreaterThanOrEqual(400);
    expect(failed.body).toMatchObject({ success: false });
    expect(JSON.stringify(failed.body)).toContain("no such file");
    const wrong = await fixture.call("POST", path, { path: "/w/1" });
    expect([wrong.status, wrong.body]).toMatchObject([400, { success: false }]);
    expect(JSON.stringify(wrong.body)).toContain("model_path");
  },
);

test("areal: ranks of a broadcast follow each other; an engine that does not know it answers 404", async () => {
  const fixture = await Fixture.ofRanks(1, 4, 2);
  const group = { master_address: "a", master_port: "1", rank_offset: 1, world_size: 8 };
  await fixture.call("POST", "/areal_init_weights_update_group", group);
  const bodies = [0, 1, 2].map((i) => fixture.worker(i).lastBody);
  expect(bodies).toEqual([1, 2, 6].map((rank) => ({ ...group, rank_offset: rank })));
  answering(fixture, () => ({ status: 404, body: null }));
  expect((await fixture.call("POST", "/areal_update_weights_xccl", {})).status).toBe(404);
  expect(fixture.sidecar.rollout.epoch).toBe(weightEpoch(0));
});

test("sglang: retract and in_place keep requests, which continue; another mode is named", async () => {
  const fixture = await Fixture.open();
  const requests = fixture.ask(4);
  await fixture.steps(3);
  const paused = await fixture.call("POST", "/pause_generation", { mode: "retract" });
  expect([paused.status, paused.body]).toMatchObject([200, { status: "ok" }]);
  expect(fixture.sidecar.rollout.pauseMode).toBe("keep");
  await fixture.call("POST", "/continue_generation", {});
  await fixture.steps(80);
  expect(requests.every(({ response }) => response.finish === "stop")).toBe(true);
  const wrong = await fixture.call("POST", "/pause_generation", { mode: "soon" });
  const named = expect.stringContaining("abort, retract, in_place");
  expect([wrong.status, JSON.stringify(wrong.body)]).toEqual([400, named]);
});

test("sglang: health, caches and memory are those of all engines", async () => {
  const fixture = await Fixture.open();
  const calls = [
    ["GET", "/health_generate", null],
    ["GET", "/flush_cache", "drop_cache"],
    ["POST", "/flush_cache", "drop_cache"],
    ["POST", "/release_memory_occupation", "sleep"],
    ["POST", "/resume_memory_occupation", "wake"],
  ] as const;
  for (const [method, path, asked] of calls) {
    const body = method === "GET" ? undefined : { tags: null };
    expect([path, (await fixture.call(method, path, body)).status]).toEqual([path, 200]);
    if (asked === null) continue;
    for (const i of [0, 1, 2]) {
      expect(fixture.worker(i).heard.some(({ kind }) => kind === asked)).toBe(true);
    }
  }
  expect((await fixture.call("GET", "/liveness")).status).toBe(200);
});

test("sglang: what slime's engine class asks of an external engine is answered as JSON", async () => {
  const fixture = await Fixture.open();
  answering(fixture, () => ({ status: 200, body: { world_size: 2 } }));
  const info = await fixture.call("GET", "/get_server_info");
  expect(info.body).toMatchObject({ tp_size: 6, dp_size: 1, pp_size: 1, nnodes: 1, node_rank: 0 });
  fixture.ask(3);
  const loads = [{ dp_rank: 0, num_total_reqs: 3 }];
  expect((await fixture.call("GET", "/v1/loads")).body).toMatchObject({ loads });
  const model = { model_path: "model", is_generation: true, weight_version: "0" };
  expect((await fixture.call("GET", "/get_model_info")).body).toMatchObject(model);
  for (const path of ["/release_memory_occupation", "/resume_memory_occupation"]) {
    const answer = await fixture.call("POST", path, {});
    expect([path, answer.status, answer.body]).toEqual([path, 200, null]);
  }
  const group = await fixture.call("POST", "/destroy_weights_update_group", { group_name: "a" });
  expect([group.status, group.body]).toMatchObject([200, { success: true }]);
});

test("server_info: has vLLM's fields and SGLang's, which slime compares with its own settings", async () => {
  const fixture = await Fixture.open();
  const vllm = { vllm_config: "dtype=float32" };
  answering(fixture, (operation) => {
    const isSettings = operation.kind === "ask" && operation.about === "settings";
    return { status: 200, body: isSettings ? vllm : { world_size: 2 } };
  });
  const flags = { enable_memory_saver: false, enable_return_routed_experts: false };
  const settings = { ...vllm, tp_size: 6, dp_size: 1, ...flags };
  expect((await fixture.call("GET", "/server_info")).body).toMatchObject(settings);
  // vLLM has it in its development mode only; slime asks for /get_server_info then.
  answering(fixture, () => ({ status: 404, body: null }));
  expect((await fixture.call("GET", "/server_info")).status).toBe(404);
});

test.each([
  "/init_weights_update_group",
  "/update_weights_from_distributed",
  "/update_weights_from_tensor",
  "/begin_weight_update",
  "/end_weight_update",
  "/pull_weights",
])("%s: is a 400 that names the way by disk, and changes nothing", async (path) => {
  const fixture = await Fixture.open();
  const answer = await fixture.call("POST", path, { names: ["a"] });
  expect([answer.status, answer.body]).toMatchObject([400, { success: false }]);
  expect(JSON.stringify(answer.body)).toContain("/update_weights_from_disk");
  expect(fixture.sidecar.rollout.epoch).toBe(weightEpoch(0));
});
