// The deaths of those whom the sidecar serves: a trainer that is killed in the middle of a rollout, of a weight update and
// between pause and resume, and a page that is killed. Each is a process of its own; the sidecar is over stand-ins for vLLM.

import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { StandInBed, stopBeds } from "../faults/attacks/stand-in-bed.ts";
import { type HttpClient, until } from "../faults/http-client.ts";
import { standInResponse } from "../faults/stand-in/tokens.ts";

setDefaultTimeout(180_000);

const GROUPS = 4;
const GROUP_SIZE = 4;
const TOKENS_MAX = 400;
/** Numbers of the responses that are drawn after those of the group. */
const RESTARTED = [4, 5, 6, 7];
/** Longer than a trainer takes for two calls, however slow the machine is. */
const UPDATE_MS_MAX = 6_000;

let bed: StandInBed;
let http: HttpClient;

beforeAll(async () => {
  const parts = ["/start_weight_update", "/update_weights", "/finish_weight_update"];
  const routes = (path: string) => (parts.includes(path) ? { status: 200, body: {} } : null);
  bed = await StandInBed.start(2, () => ({ routes }), {
    limits: { pollMs: 20 },
    serve: { weightsTimeoutMs: UPDATE_MS_MAX, chunkTokens: 16 },
  });
  ({ http } = bed);
  await until(() => hasStates("ready"), "both servers");
});

afterAll(stopBeds);

/** Runs a program that knows the sidecar's URL as `url`; kills it when it has printed a line. */
async function diesAfter(program: string): Promise<void> {
  const code = `const url = ${JSON.stringify(bed.sidecar.url.href)};\n${program}`;
  const child = Bun.spawn([process.execPath, "-e", code], { stdout: "pipe" });
  const { value } = await child.stdout.getReader().read();
  expect(new TextDecoder().decode(value)).toBe("now\n");
  child.kill("SIGKILL");
  await child.exited;
}

const hasStates = async (state: string) =>
  (await http.workers()).every((worker) => worker.state === state);

const promptOf = (group: number): number[] => [group, 8, 9, 10];

const rollout = (id: string) => ({
  ...{ id, detached: true, n: GROUP_SIZE, sampling_params: { max_tokens: TOKENS_MAX } },
  groups: Array.from({ length: GROUPS }, (_, i) => ({ id: `g${i}`, token_ids: promptOf(i) })),
});

/** Asks for the rollout as a trainer that was started again does, and compares every token. */
async function collect(id: string): Promise<{ report: { restarts: number } }> {
  const text = (await http.ask("/v1/rollouts", rollout(id))).text;
  const lines = text.trim().split("\n");
  const summary = JSON.parse(lines.pop() ?? "");
  expect(summary).toMatchObject({ rollout: id, state: "finished" });
  const got = new Set<string>();
  for (const line of lines) {
    const { group, index, token_ids, chunks } = JSON.parse(line);
    expect(got.has(`${group}/${index}`)).toBe(false);
    got.add(`${group}/${index}`);
    // What restarts under new weights is drawn with other random numbers.
    const samples = summary.report.restarts > 0 ? [index, ...RESTARTED] : [index];
    const prompt = promptOf(Number(group.slice(1)));
    const possible = samples.map((sample) =>
      standInResponse({ prompt, sample, tokensMax: TOKENS_MAX }).join(),
    );
    expect(possible).toContain(token_ids.join());
    expect(new Set(chunks.map((chunk: { weight_epoch: number }) => chunk.weight_epoch)).size).toBe(
      1,
    );
  }
  expect(got.size).toBe(GROUPS * GROUP_SIZE);
  return summary;
}

/** Asks for the rollout, and waits until it generates. */
const begin = (id: string) => `
  void fetch(url + "v1/rollouts", { method: "POST", body: ${JSON.stringify(JSON.stringify(rollout(id)))} });
  for (let tokens = 0; tokens === 0; await Bun.sleep(1)) {
    tokens = (await (await fetch(url + "v1/rollouts/${id}")).json()).progress?.output_tokens ?? 0;
  }
`;
const SAY = `console.log("now"); await Bun.sleep(60_000);`;

test("trainer: killed in the middle of a rollout, the next one gets every response once, none generated anew", async () => {
  await diesAfter(begin("rollout") + SAY);
  const { report } = await collect("rollout");
  expect(report.restarts).toBe(0);
});

test("trainer: killed in the middle of a weight update, the update ends by itself, and the next trainer's counts", async () => {
  const before = (await http.json("/foretoken/workers")) as { weight_epoch?: number };
  await diesAfter(
    `${begin("update")}
    const call = (path, body) => fetch(url + path, { method: "POST", body: JSON.stringify(body) });
    await call("start_weight_update", {});
    await call("update_weights", { update_info: { names: ["a"] } });
    ${SAY}`,
  );
  // Their weights are unknown now: they wait for whole ones.
  await until(() => hasStates("fenced"), "both are fenced");
  expect(bed.notices).toContain("abandoned");
  expect(before.weight_epoch).toBe(
    ((await http.json("/foretoken/workers")) as typeof before).weight_epoch,
  );
  const whole = { method: "reload_weights", kwargs: { weights_path: "/weights" } };
  expect((await http.post("/collective_rpc", whole)).status).toBe(200);
  await collect("update");
});

test("trainer: killed between pause and resume, the pause is visible, and the next trainer ends it", async () => {
  await diesAfter(
    `${begin("pause")}
    await fetch(url + "pause?mode=keep", { method: "POST" });
    ${SAY}`,
  );
  expect(await http.json("/is_paused")).toMatchObject({
    is_paused: true,
    reason: "paused with mode keep",
  });
  expect((await http.post("/resume", {})).status).toBe(200);
  await collect("pause");
});

test("page: killed while it follows the stream, its socket is closed, and the rollout goes on", async () => {
  const clients = () => http.metric("foretoken_stream_clients");
  expect(await clients()).toBe(0);
  await diesAfter(
    `const { followTokens } = await import("foretoken/stream");
    const events = followTokens(url, { all: true });
    await events.next();
    ${begin("page")}
    await events.next();
    ${SAY}`,
  );
  await until(async () => (await clients()) === 0, "no client");
  await collect("page");
});
