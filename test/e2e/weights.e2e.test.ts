// Weight updates and adapters over vLLM stand-ins, through a whole sidecar: what a trainer is told, what serves, and
// under which salt and model each chunk is asked for.

import { afterEach, expect, setDefaultTimeout, test } from "bun:test";
import { StandInBed, stopBeds } from "../faults/attacks/stand-in-bed.ts";
import { until } from "../faults/http-client.ts";
import { standInResponse } from "../faults/stand-in/tokens.ts";
import { pathSample } from "../faults/stand-in/vllm-stand-in.ts";

setDefaultTimeout(180_000);

const PROMPT = [7, 8, 9, 10, 11, 12];
const TOKENS_MAX = 24;

afterEach(stopBeds);

async function world(): Promise<StandInBed> {
  const bed = await StandInBed.start(2);
  await ready(bed);
  return bed;
}

const ready = ({ http }: StandInBed) => until(() => http.isServing(), "both");

async function tokensOf({ http }: StandInBed, model: string, n = 4): Promise<number[][]> {
  const body = { model, prompt: PROMPT, n, max_tokens: TOKENS_MAX, return_token_ids: true };
  const { status, text } = await http.ask("/v1/completions", body);
  expect([status, text.slice(0, 200)]).toEqual([
    200,
    expect.stringContaining(`"model":"${model}"`),
  ]);
  return (JSON.parse(text) as { choices: { token_ids: number[] }[] }).choices.map(
    ({ token_ids: ids }) => ids,
  );
}

/** Tokens of `n` responses of the model, or of the adapter at `path`. */
function expected(path: string | undefined, n = 4): number[][] {
  const first = pathSample(path ?? null);
  return Array.from({ length: n }, (_, i) =>
    standInResponse({ prompt: PROMPT, sample: first + i, tokensMax: TOKENS_MAX }),
  );
}

const statusOf = async ({ http }: StandInBed, model: object) =>
  (await http.ask("/v1/completions", { prompt: PROMPT, ...model })).status;

const reload = (path: string) => ({ method: "reload_weights", kwargs: { weights_path: path } });

for (const kind of ["nan", "flat"]) {
  test(`weights that are ${kind}: the update is an error that names the servers; none serves until good ones come`, async () => {
    const one = await world();
    const { status, text } = await one.http.ask("/collective_rpc", reload(`/w/${kind}`));
    expect(status).toBe(500);
    for (const { url } of one.standIns) expect(text).toContain(url);
    expect(text).toContain("the weights do not generate");
    expect(one.notices).toEqual(["canary_failed", "canary_failed"]);
    const health = await one.http.get("/health");
    expect(health.status).toBe(503);
    expect(health.text).toContain("the weights do not generate");
    expect(await statusOf(one, {})).toBe(503);
    expect((await one.http.ask("/collective_rpc", reload("/w/good"))).status).toBe(200);
    expect(await tokensOf(one, "tiny")).toEqual(expected(undefined));
  });
}

test("collective_rpc update_weight: the next epoch begins, so nothing of the old one is found", async () => {
  const one = await world();
  await tokensOf(one, "tiny");
  await one.http.ask("/collective_rpc", { method: "update_weight", args: ["lm_head.weight"] });
  expect(Number(one.sidecar.sidecar.rollout.epoch)).toBe(1);
  await tokensOf(one, "tiny");
  const salts = new Set(
    one.standIns.flatMap(({ bodies }) => bodies.map((body) => body.cache_salt)),
  );
  const own = [...salts].filter((salt) => /-w\d+$/.test(String(salt)));
  expect(own.map((salt) => String(salt).slice(-3)).sort()).toEqual(["-w0", "-w1"]);
  // The canary of each server has a salt of its own.
  expect([...salts].filter((salt) => String(salt).includes("canary")).length).toBe(2);
});

test("an adapter is served under its name on every server, apart from the model", async () => {
  const one = await world();
  const load = { lora_name: "policy", lora_path: "/lora/1" };
  expect(await statusOf(one, { model: "policy" })).toBe(404);
  // Text, as vLLM has it.
  expect(await one.http.ask("/v1/load_lora_adapter", load)).toEqual({
    status: 200,
    text: "Success: LoRA adapter 'policy' added successfully.",
  });
  expect((await one.http.get("/v1/models")).text).toContain('"id":"policy"');
  const [own, adapted] = await Promise.all([tokensOf(one, "tiny", 8), tokensOf(one, "policy", 8)]);
  expect(own).toEqual(expected(undefined, 8));
  expect(adapted).toEqual(expected("/lora/1", 8));
  const chunks = one.standIns.flatMap(({ bodies }) => bodies);
  const named = chunks.filter((body) => body.model === "policy");
  expect(
    new Set(named.map((body) => String(body.cache_salt).replace(/canary-.*/, "canary"))),
  ).toEqual(new Set(["foretoken-canary", "foretoken-w1-a-policy"]));
  const groupOf = (body: (typeof chunks)[number]) =>
    JSON.stringify(Object(body.sampling_params).extra_args?.foretoken_group);
  const groups = (list: typeof chunks) =>
    new Set(list.map(groupOf).filter((g) => !/canary/.test(g)));
  const others = chunks.filter(
    (body) => body.model !== "policy" && /-w1$/.test(`${body.cache_salt}`),
  );
  expect([...groups(named)].filter((group) => groups(others).has(group))).toEqual([]);
});

test("a rollout is drawn from the adapter that it names, and from nothing else", async () => {
  const one = await world();
  const body = {
    groups: [{ id: "a", token_ids: PROMPT, n: 4 }],
    sampling_params: { max_tokens: TOKENS_MAX },
  };
  const rolloutOf = async (model: object) => {
    const { status, text } = await one.http.ask("/v1/rollouts", { ...body, ...model });
    expect([status, text.slice(0, 200)]).toEqual([200, expect.stringContaining('"group":"a"')]);
    const lines = text.trim().split("\n").slice(0, -1);
    return lines.map((line) => (JSON.parse(line) as { token_ids: number[] }).token_ids);
  };
  const unknown = await one.http.ask("/v1/rollouts", { ...body, model: "policy" });
  expect(unknown.status).toBe(404);
  expect(unknown.text).toContain("The model `policy` does not exist.");
  expect((await one.http.ask("/v1/rollouts", { ...body, model: 7 })).status).toBe(400);
  await one.http.ask("/v1/load_lora_adapter", { lora_name: "policy", lora_path: "/lora/1" });
  const drawn = await Promise.all([{}, { model: "tiny" }, { model: "policy" }].map(rolloutOf));
  expect(drawn).toEqual([expected(undefined), expected(undefined), expected("/lora/1")]);
});

test("an adapter loaded again in place is the new one; unloaded it is a 404 again", async () => {
  const one = await world();
  await one.http.ask("/load_lora_adapter", { lora_name: "policy", lora_path: "/lora/1" });
  const again = { lora_name: "policy", lora_path: "/lora/2", load_inplace: true };
  expect((await one.http.ask("/v1/load_lora_adapter", again)).status).toBe(200);
  expect(await tokensOf(one, "policy")).toEqual(expected("/lora/2"));
  expect((await one.http.ask("/v1/unload_lora_adapter", { lora_name: "policy" })).status).toBe(200);
  expect(await statusOf(one, { model: "policy" })).toBe(404);
  expect(await tokensOf(one, "tiny")).toEqual(expected(undefined));
});

test("an adapter that a server cannot load is served by none, and every server continues", async () => {
  const one = await world();
  const absent = { lora_name: "policy", lora_path: "/lora/absent" };
  expect((await one.http.ask("/v1/load_lora_adapter", absent)).status).toBe(404);
  expect(Number(one.sidecar.sidecar.rollout.epoch)).toBe(0);
  one.standIns[1]?.adapters.set("policy", "/lora/earlier");
  const load = { lora_name: "policy", lora_path: "/lora/1" };
  const { status, text } = await one.http.ask("/v1/load_lora_adapter", load);
  expect([status, text]).toEqual([500, expect.stringContaining("has already been loaded")]);
  expect(one.standIns[0]?.adapters.has("policy")).toBe(false);
  await ready(one);
  expect(await statusOf(one, { model: "policy" })).toBe(404);
  for (const name of ["tiny", "", 7, "x".repeat(300)]) {
    const wrong = { lora_name: name, lora_path: "/lora/1" };
    expect((await one.http.ask("/v1/load_lora_adapter", wrong)).status).toBe(400);
  }
});

test("a server that comes back is given weights and adapters before it serves", async () => {
  const one = await world();
  await one.http.ask("/collective_rpc", reload("/w/good"));
  await one.http.ask("/v1/load_lora_adapter", { lora_name: "policy", lora_path: "/lora/1" });
  const [first] = one.standIns;
  first?.adapters.clear();
  await first?.restart();
  await until(() => first?.adapters.get("policy") === "/lora/1", "the adapter");
  await ready(one);
  expect(await tokensOf(one, "policy", 8)).toEqual(expected("/lora/1", 8));
});
