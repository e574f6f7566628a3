// The control plane over several engines: one answer, one weight epoch, and no engine with old weights in service.

import { expect, test } from "bun:test";
import { begun, ControlFixture as Fixture } from "../../../test/suite/control-fixture.ts";
import { AppError } from "../../core/base/errors.ts";

const reload = { method: "reload_weights", kwargs: { weights_path: "/w/1" } };

test("calls to engines that do not answer are bounded, and /health answers all the same", async () => {
  const fixture = await Fixture.open();
  const gate = Promise.withResolvers<{ status: number; body: object }>();
  fixture.worker(0).script = () => gate.promise;
  const reset = () => fixture.send("/reset_prefix_cache", null);
  const calls = Array.from({ length: 1024 }, reset);
  await fixture.step();
  await expect(reset()).rejects.toThrow("1024 calls to engines are under way");
  expect((await fixture.call("GET", "/health")).status).toBe(200);
  gate.resolve({ status: 200, body: {} });
  for (const { status } of await Promise.all(calls)) expect(status).toBe(200);
  expect((await reset()).status).toBe(200);
});

test("init_weight_transfer_engine: each engine's ranks follow those before it", async () => {
  const fixture = await Fixture.ofRanks(1, 4, 2);
  expect((await fixture.call("GET", "/get_world_size")).body).toEqual({ world_size: 7 });
  const info = { master_address: "a", master_port: 1, rank_offset: 1, world_size: 8 };
  await fixture.call("POST", "/init_weight_transfer_engine", { init_info: info });
  const bodies = [0, 1, 2].map((i) => fixture.worker(i).lastBody);
  expect(bodies).toEqual([1, 2, 6].map((rank) => ({ init_info: { ...info, rank_offset: rank } })));
});

test("init_weight_transfer_engine: a rank that is no whole number is refused, and no engine hears of it", async () => {
  const fixture = await Fixture.open();
  for (const rank of [{ toString: 1, valueOf: null }, "1", -1, 1.5, 2 ** 21]) {
    for (const body of [{ init_info: { rank_offset: rank } }, { server_rank: rank }]) {
      const call = fixture.call("POST", "/init_weight_transfer_engine", body);
      await expect(call).rejects.toThrow("it is a whole number from 0 to 1048576");
    }
  }
  const heard = [0, 1, 2].flatMap((i) => fixture.worker(i).heard.map(({ kind }) => kind));
  expect(heard).not.toContain("update");
});

test("an update's answer is an engine's own; a method's results are those of all engines", async () => {
  const fixture = await Fixture.open();
  for (const i of [0, 1, 2]) {
    fixture.worker(i).script = ({ kind }) => {
      const body = kind === "load" ? { results: [i] } : { message: "Weights updated" };
      return { status: 200, body };
    };
  }
  const update = await fixture.call("POST", "/update_weights", { update_info: { names: ["a"] } });
  expect(update.body).toEqual({ message: "Weights updated" });
  expect((await fixture.call("POST", "/collective_rpc", reload)).body).toEqual({
    results: [0, 1, 2],
  });
});

test("health: 503 with every worker's state when none serves", async () => {
  const fixture = await Fixture.open();
  expect((await fixture.call("GET", "/health")).status).toBe(200);
  for (const i of [0, 1, 2]) fixture.worker(i).kill();
  const answer = await fixture.call("GET", "/health");
  expect(answer.status).toBe(503);
  expect(JSON.stringify(answer.body)).toContain('"reason":"killed"');
});

test("start: a body that is not JSON pauses nothing", async () => {
  const fixture = await Fixture.open();
  fixture.badBody = new AppError("invalid_json", "the body is not JSON");
  await expect(fixture.call("POST", "/start_weight_update")).rejects.toThrow("not JSON");
  await fixture.step();
  expect(fixture.sidecar.rollout.pauseMode).toBeNull();
});

test("start: with no worker there it is refused, and pauses nothing", async () => {
  const fixture = await Fixture.open();
  for (const i of [0, 1, 2]) fixture.worker(i).kill();
  const { answer } = await begun(fixture, "/start_weight_update", {});
  fixture.clock.advance(60_000);
  await fixture.passTime();
  await expect(answer).rejects.toThrow("no worker");
  await fixture.steps(3);
  expect(fixture.sidecar.rollout.pauseMode).toBeNull();
});

test("update: waits for an engine that is being opened again, where there is no other", async () => {
  const fixture = await Fixture.open({ keepsWeights: false });
  for (const i of [0, 1, 2]) fixture.worker(i).kill();
  const { answer } = await begun(fixture, "/collective_rpc", reload);
  await fixture.retry();
  await fixture.passTime();
  expect((await answer).status).toBe(200);
  expect(fixture.states).toEqual(["ready", "ready", "ready"]);
});

test("pause: one that comes while weights change outlasts the update", async () => {
  const fixture = await Fixture.open();
  const requests = fixture.ask(2);
  await fixture.call("POST", "/start_weight_update", {});
  await fixture.call("POST", "/pause?mode=keep");
  await fixture.call("POST", "/update_weights", {});
  await fixture.call("POST", "/finish_weight_update", {});
  const lengths = requests.map(({ response }) => response.length);
  await fixture.steps(5);
  expect(requests.map(({ response }) => response.length)).toEqual(lengths);
});

test("pause: an unknown mode is refused by name, and wait while weights change, for nothing can end then", async () => {
  const fixture = await Fixture.open();
  await expect(fixture.call("POST", "/pause?mode=now")).rejects.toThrow(
    'mode is "now"; it is one of abort, wait, keep',
  );
  const requests = fixture.ask(2);
  await fixture.step();
  await fixture.call("POST", "/start_weight_update", {});
  const lengths = requests.map(({ response }) => response.length);
  await expect(fixture.call("POST", "/pause?mode=wait")).rejects.toThrow("being updated");
  await fixture.steps(5);
  expect(requests.map(({ response }) => response.length)).toEqual(lengths);
});

test("pause: a resume before it takes hold ends it, and is reported", async () => {
  const fixture = await Fixture.open();
  fixture.ask(2);
  await fixture.steps(2);
  const { answer } = await begun(fixture, "/pause?mode=wait");
  await fixture.call("POST", "/resume");
  await expect(answer).rejects.toThrow("resumed before");
  await fixture.steps(60);
  expect(fixture.finished.length).toBe(2);
});
