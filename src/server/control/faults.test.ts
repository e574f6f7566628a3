// Weight updates that go wrong: weights that do not generate, engines that are silent or die, trainers that never
// come back. Nothing waits for longer than the deadline, and what serves afterwards has the epoch's weights.

import { expect, test } from "bun:test";
import {
  begun,
  ControlFixture as Fixture,
  gated,
  type ScriptedWorker,
} from "../../../test/suite/control-fixture.ts";
import { weightEpoch } from "../../core/base/ids.ts";

const reload = { method: "reload_weights", kwargs: { weights_path: "/w/1" } };

/** Makes the worker leave the next request unanswered. */
function mute(worker: ScriptedWorker): void {
  worker.gate = new Promise(() => {});
}

test("canary: an engine that computes otherwise than the others is fenced before a token of it is served", async () => {
  const fixture = await Fixture.open();
  const made = (by: number) => () => ({ status: 200, body: { tokens: [7], logprobs: [-1 - by] } });
  for (const [i, by] of [0, 2, 0].entries()) fixture.worker(i).generates = made(by);
  const answer = await fixture.call("POST", "/collective_rpc", reload);
  expect([answer.status, fixture.states]).toEqual([500, ["ready", "fenced", "ready"]]);
  expect(fixture.pool.members[1]?.reason).toContain("differ by 2.000 from those of engine-0");
  const requests = fixture.ask(6);
  await fixture.steps(80);
  const served = requests.flatMap(({ response }) => response.chunks.map((chunk) => chunk.workerId));
  expect(served.map(Number)).not.toContain(1);
  // The trainer's own is another than that of all engines.
  await fixture.call("POST", "/v1/weights/expect", { tokens: [7], logprobs: [-9] });
  await fixture.call("POST", "/collective_rpc", reload);
  expect(fixture.states).toEqual(["fenced", "fenced", "fenced"]);
});

test("canary: not between the parts of an update, whose weights are mixed", async () => {
  const fixture = await Fixture.open();
  let canaries = 0;
  fixture.worker(0).generates = () => {
    canaries += 1;
    return { status: 200, body: {} };
  };
  await fixture.call("POST", "/collective_rpc", { method: "start_weight_update" });
  for (const name of ["a", "b", "c"]) {
    await fixture.call("POST", "/collective_rpc", { method: "update_weight", args: [name] });
  }
  expect([canaries, Number(fixture.sidecar.rollout.epoch)]).toEqual([0, 0]);
  await fixture.call("POST", "/collective_rpc", { method: "finish_weight_update" });
  expect([canaries, Number(fixture.sidecar.rollout.epoch)]).toEqual([1, 1]);
});

test("collective_rpc: harmless methods leave the epoch, and every engine's results come back", async () => {
  const fixture = await Fixture.open();
  for (const i of [0, 1, 2]) {
    fixture.worker(i).script = () => ({ status: 200, body: { results: [`gpu-${i}`] } });
  }
  for (const method of ["report_device_id", "check_health", "get_node_ip"]) {
    const { body } = await fixture.call("POST", "/collective_rpc", { method });
    expect(body).toEqual({ results: ["gpu-0", "gpu-1", "gpu-2"] });
  }
  expect(fixture.sidecar.rollout.epoch).toBe(weightEpoch(0));
  await expect(fixture.call("POST", "/collective_rpc", { method: "sleep" })).rejects.toThrow(
    "POST /sleep does it",
  );
});

test("weight_checker: reset changes the weights, checksum does not", async () => {
  const fixture = await Fixture.open();
  await fixture.call("POST", "/weight_checker", { action: "checksum" });
  expect(fixture.sidecar.rollout.epoch).toBe(weightEpoch(0));
  await fixture.call("POST", "/weight_checker", { action: "reset" });
  expect(fixture.sidecar.rollout.epoch).toBe(weightEpoch(1));
});

const said = ({ status, body }: { status: number; body: unknown }): string =>
  `${status} ${JSON.stringify(body)}`;

test("deadline: a silent engine is named with 504 and opened again; the others and later updates continue", async () => {
  const fixture = await Fixture.open({ keepsWeights: false });
  const requests = fixture.ask(4);
  mute(fixture.worker(1));
  const { answer } = await begun(fixture, "/collective_rpc", reload);
  await fixture.steps(20);
  expect((await fixture.call("GET", "/is_paused")).body).toMatchObject({ is_paused: true });
  await fixture.passTime();
  expect(said(await answer)).toMatch(/^504 .*engine-1 answered 504: no answer within 5 s/);
  expect(fixture.states).toEqual(["ready", "down", "ready"]);
  await fixture.retry();
  expect(fixture.states).toEqual(["ready", "ready", "ready"]);
  expect((await fixture.call("POST", "/collective_rpc", reload)).status).toBe(200);
  await fixture.steps(80);
  expect(requests.every(({ response }) => response.finish === "stop")).toBe(true);
});

test("deadline: an engine that does not stop for an update is opened again, and its requests continue elsewhere", async () => {
  const fixture = await Fixture.open();
  const requests = fixture.ask(6);
  await fixture.steps(3);
  fixture.worker(0).isDead = true;
  const { answer } = await begun(fixture, "/collective_rpc", reload);
  await fixture.steps(20);
  await fixture.passTime();
  expect(fixture.states).toEqual(["down", "ready", "ready"]);
  await fixture.retry();
  await fixture.passPolls();
  expect((await answer).status).toBe(200);
  expect(fixture.states).toEqual(["ready", "ready", "ready"]);
  await fixture.steps(80);
  expect(requests.every(({ response }) => response.finish === "stop")).toBe(true);
});

test("an update that is left open is given up, and the log names the engines that are opened again", async () => {
  const fixture = await Fixture.open({ keepsWeights: false });
  await fixture.call("POST", "/start_weight_update", {});
  fixture.worker(2).script = () => ({ status: 400, body: { error: "not mine" } });
  await fixture.call("POST", "/update_weights", { update_info: { names: ["a"] } });
  fixture.worker(2).script = () => ({ status: 200, body: {} });
  await fixture.passTime();
  expect(fixture.notices).toMatchObject([
    { kind: "abandoned", reason: "no request for 5 s", reopened: "engine-0, engine-1" },
  ]);
});

test("an open update: a start gives it up, and the engines with a part of it take all of the next one", async () => {
  const fixture = await Fixture.open();
  const start = () => fixture.call("POST", "/start_weight_update", {});
  await start();
  // Nothing has changed: as a call that is sent again.
  expect([(await start()).status, fixture.states]).toEqual([200, ["ready", "ready", "ready"]]);
  await fixture.call("POST", "/update_weights", { update_info: { names: ["a"] } });
  const { answer } = await begun(fixture, "/start_weight_update", {});
  await fixture.steps(5);
  expect(fixture.states).toEqual(["down", "down", "down"]);
  await fixture.retry();
  await fixture.passPolls();
  expect((await answer).status).toBe(200);
  for (const index of [0, 1, 2]) expect(fixture.worker(index).heard.length).toBe(1);
  await fixture.call("POST", "/update_weights", { update_info: { names: ["a"] } });
  await fixture.call("POST", "/finish_weight_update", {});
  expect(fixture.states).toEqual(["ready", "ready", "ready"]);
  expect(fixture.notices).toMatchObject(Array(2).fill({ reason: "another one begins" }));
});

test("resume: reports that it is deferred and why, and so does is_paused", async () => {
  const fixture = await Fixture.open();
  await fixture.call("POST", "/start_weight_update", {});
  const { body } = await fixture.call("POST", "/resume");
  expect(body).toMatchObject({ status: "deferred" });
  expect(JSON.stringify(body)).toContain("POST /abort_weight_update");
  expect((await fixture.call("GET", "/is_paused")).body).toMatchObject({
    is_paused: true,
    resumes: true,
    reason: expect.stringContaining("a weight update is open"),
  });
  await fixture.call("POST", "/finish_weight_update", {});
  expect((await fixture.call("GET", "/is_paused")).body).toMatchObject({ is_paused: false });
  expect((await fixture.call("POST", "/resume")).body).toEqual({ status: "resumed" });
});

test("calls that wait for an update: one more than 64 is refused by number, and the others are answered", async () => {
  const fixture = await Fixture.open();
  const open = gated(fixture.worker(0));
  const calls = Array.from({ length: 64 }, () => fixture.send("/collective_rpc", reload));
  await fixture.steps(2);
  for (const target of ["/collective_rpc", "/start_weight_update", "/v1/load_lora_adapter"]) {
    const body = { method: "reload_weights", lora_name: "a" };
    await expect(fixture.send(target, body)).rejects.toThrow("64 calls that change weights");
  }
  open();
  for (let i = 0; i < 2_000 && fixture.sidecar.rollout.epoch < 64; i += 1) await fixture.step();
  const statuses = (await Promise.all(calls)).map(({ status }) => status);
  expect(statuses).toEqual(statuses.map(() => 200));
  expect((await fixture.call("POST", "/collective_rpc", reload)).status).toBe(200);
});

test("abort_weight_update: many at once take one turn, and all are answered", async () => {
  const fixture = await Fixture.open({ keepsWeights: false });
  mute(fixture.worker(0));
  const { answer } = await begun(fixture, "/collective_rpc", reload);
  const aborts = Array.from({ length: 100 }, () => fixture.send("/abort_weight_update", {}));
  expect((await answer).status).toBe(504);
  for (const abort of aborts) expect((await abort).status).toBe(200);
});

test("pause: is_paused counts its seconds", async () => {
  const fixture = await Fixture.open();
  const state = async () => (await fixture.call("GET", "/is_paused")).body;
  expect(await state()).toMatchObject({ is_paused: false, paused_s: null });
  await fixture.call("POST", "/pause?mode=keep");
  fixture.clock.advance(90_000);
  expect(await state()).toMatchObject({ is_paused: true, paused_s: 90 });
  await fixture.call("POST", "/resume");
  expect(await state()).toMatchObject({ is_paused: false, paused_s: null });
});

/** An engine comes back, and answers so to the weights that it is given. */
async function given(status: number, error: string): Promise<Fixture> {
  const fixture = await Fixture.open();
  await fixture.call("POST", "/collective_rpc", reload);
  fixture.worker(0).kill();
  const open = fixture.gateNext();
  await fixture.retry();
  fixture.worker(0).script = () => ({ status, body: { error } });
  open();
  await fixture.steps(3);
  return fixture;
}

test("an engine that refuses the weights that it is given is fenced, with its reason", async () => {
  const { states, pool } = await given(400, "no such file");
  expect(states[0]).toBe("fenced");
  expect(pool.members[0]?.reason).toBe(
    "came back without the current weights; given them by load, answered 400: no such file",
  );
});

test("an engine that has no room for the weights that it is given is opened again until it has", async () => {
  const fixture = await given(503, "EFBIG, write");
  expect(fixture.states[0]).toBe("down");
  expect(fixture.pool.members[0]?.reason).toContain("by load, answered 503: EFBIG, write");
  await fixture.retry();
  expect(fixture.states).toEqual(["ready", "ready", "ready"]);
});

test("an engine whose connection fails as it is closed is opened once", async () => {
  const fixture = await Fixture.open();
  fixture.worker(1).script = () => ({ status: 500, body: {} });
  await fixture.call("POST", "/collective_rpc", reload);
  const fenced = fixture.worker(1);
  fenced.script = () => ({ status: 200, body: {} });
  fenced.close = async () => fenced.kill();
  await fixture.call("POST", "/collective_rpc", reload);
  await fixture.retry();
  expect(fixture.states).toEqual(["ready", "ready", "ready"]);
  expect(fixture.opened[1]?.length).toBe(2);
});
