// Attacks real embedded engines behind a real `foretoken serve` with random sampling settings: extremes, denormals,
// 1e999, contradictions, every token stopped or forbidden, all endpoints. Each must be answered within its deadline
// with 200 or a 400 in vLLM's shape; no engine may end; and a good request gives the same tokens before and after.

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mix32 } from "../../src/base/hash.ts";
import { engineMissing, start } from "../e2e/tool.ts";
import { rounds } from "./scale.ts";

setDefaultTimeout(120_000);

const SEED = Number(process.env.SEED ?? 1);
const TRIALS = rounds(60, 1200);
const AT_ONCE = 8;
const ANSWER_MS_MAX = 20_000;
const VOCABULARY = 1376;

type Json = string;

/** Numbers as they stand in JSON: some have no counterpart in float32, some none in float64. */
const REALS: readonly Json[] = [
  ...["0", "-0", "5e-324", "1e-320", "1e-308", "1e-45", "1e-38", "1e-30", "1e-10", "1e-6", "0.001"],
  ...["0.01", "0.3", "0.999999999999", "1", "1.0000001", "1.5", "2", "2.0001", "10", "100", "1e3"],
  ...[
    "1e6",
    "1e10",
    "1e38",
    "3.5e38",
    "1e300",
    "1.7e308",
    "1e309",
    "1e999",
    "-1e999",
    "-1",
    "-0.1",
  ],
  ...["-2", "-1e-320", '"1"', '"NaN"', "true", "[]", "{}"],
];
const WHOLES: readonly Json[] = [
  ...["0", "1", "2", "3", "12", "-1", "-2", "20", "21", "32", "1375", "1376", "4097", "65536"],
  ...["2147483647", "2147483648", "4294967296", "9007199254740991", "9007199254740992"],
  ...["-9007199254740991", "1e18", "1e999", "1.5", "1e-320", '"3"', "false", "[1]"],
];

class Dice {
  #state: number;

  constructor(seed: number) {
    this.#state = mix32(seed ^ 0x51ed270b);
  }

  below(count: number): number {
    this.#state = mix32(this.#state + 0x9e3779b9);
    return this.#state % count;
  }

  one<T>(of: readonly T[]): T {
    return of[this.below(of.length)] as T;
  }
}

const range = (count: number) => Array.from({ length: count }, (_, i) => i);

function tokenLists(dice: Dice): Json {
  return dice.one([
    () => JSON.stringify(range(VOCABULARY)),
    () => JSON.stringify(range(VOCABULARY - 1)),
    () => JSON.stringify(range(VOCABULARY).slice(1)),
    () => JSON.stringify(new Array(1 + dice.below(6000)).fill(dice.below(VOCABULARY))),
    () => `[${dice.one(WHOLES)},${dice.one(WHOLES)}]`,
    () => "[]",
  ])();
}

function biases(dice: Dice): Json {
  const all = (bias: Json) => `{${range(VOCABULARY).map((token) => `"${token}":${bias}`)}}`;
  return dice.one([
    () => all("-100"),
    () => all("100"),
    () => all(dice.one(REALS)),
    () => `{"${dice.below(VOCABULARY)}":${dice.one(REALS)}}`,
    () => `{"${dice.one(["-1", "1376", "1e3", "x", "", "99999999999"])}":1}`,
    () => `{${range(5000).map((token) => `"${token}":1`)}}`,
  ])();
}

/** A setting is a few fields with values of their kind, mostly extreme ones. */
function settingOf(dice: Dice): Map<string, Json> {
  const kinds: Record<string, () => Json> = {
    temperature: () => dice.one(REALS),
    top_p: () => dice.one(REALS),
    min_p: () => dice.one(REALS),
    repetition_penalty: () => dice.one(REALS),
    presence_penalty: () => dice.one(REALS),
    frequency_penalty: () => dice.one(REALS),
    top_k: () => dice.one(WHOLES),
    seed: () => dice.one(WHOLES),
    min_tokens: () => dice.one(WHOLES),
    n: () => dice.one(["1", "2", "5", "0", "-1", "16385", "1e999", "1.5"]),
    stop_token_ids: () => tokenLists(dice),
    logit_bias: () => biases(dice),
    ignore_eos: () => dice.one(["true", "false"]),
    allowed_token_ids: () => tokenLists(dice),
    stop: () => dice.one(['""', '["a"]', '" "', "[]", `"${"x".repeat(3000)}"`]),
  };
  const setting = new Map<string, Json>([["max_tokens", String(1 + dice.below(12))]]);
  if (dice.below(8) === 0) setting.set("max_tokens", dice.one(WHOLES.slice(10)));
  const names = Object.keys(kinds);
  for (let i = 1 + dice.below(4); i > 0; i -= 1) {
    const name = dice.one(names);
    setting.set(name, kinds[name]?.() ?? "0");
  }
  return setting;
}

const PROMPT = [3, 17, 29, 5, 8];

const written = (fields: ReadonlyMap<string, Json>) =>
  [...fields].map(([name, value]) => `"${name}":${value}`).join(",");

function renamed(
  fields: ReadonlyMap<string, Json>,
  names: Readonly<Record<string, string>>,
): Map<string, Json> {
  return new Map([...fields].map(([name, value]) => [names[name] ?? name, value]));
}

function requestOf(dice: Dice): { path: string; body: string } {
  const setting = settingOf(dice);
  const prompt = JSON.stringify(PROMPT.map((token) => token + dice.below(3)));
  const logprobs = dice.below(3) === 0 ? `,"logprobs":${dice.one(WHOLES)}` : "";
  switch (dice.below(5)) {
    case 0: {
      const stream = dice.one(["true", "false"]);
      const body = `{"prompt":${prompt},"stream":${stream},${written(setting)}${logprobs}}`;
      return { path: "/v1/completions", body };
    }
    case 1: {
      const messages = '[{"role":"user","content":"sort 9 27 4"}]';
      return { path: "/v1/chat/completions", body: `{"messages":${messages},${written(setting)}}` };
    }
    case 2: {
      const names = {
        max_tokens: "max_new_tokens",
        min_tokens: "min_new_tokens",
        seed: "sampling_seed",
      };
      const params = written(renamed(setting, names));
      return { path: "/generate", body: `{"input_ids":${prompt},"sampling_params":{${params}}}` };
    }
    case 3: {
      setting.delete("stop");
      setting.delete("n");
      const group = `{"id":"g${dice.below(1000)}","token_ids":${prompt},"n":${1 + dice.below(3)}}`;
      const body = `{"groups":[${group}],"sampling":{${written(setting)}}}`;
      return { path: "/v1/rollouts", body };
    }
    default: {
      const params = `{${written(setting)}${logprobs}}`;
      const body = `{"token_ids":${prompt},"sampling_params":${params}}`;
      return { path: "/inference/v1/generate", body };
    }
  }
}

describe.skipIf(engineMissing() !== null)("sampling settings", () => {
  let child: ReturnType<typeof start>;
  let url = "";
  const log: string[] = [];
  const failures: string[] = [];

  beforeAll(async () => {
    const engines = ["--llama", "2", "--deterministic", "--slots", "8", "--kv-tokens", "8192"];
    child = start(["serve", "--port", "0", "--log", "json", ...engines]);
    void lines(child.stderr, (line) => log.push(line));
    url = await new Promise<string>((resolve, reject) => {
      void lines(child.stdout, (line) => {
        const [, found] = /^foretoken on (\S+)/.exec(line) ?? [];
        if (found !== undefined) resolve(found);
      });
      void child.exited.then((code) => reject(new Error(`ended with ${code}: ${log.join("")}`)));
    });
  });

  afterAll(() => {
    child.kill("SIGKILL");
  });

  async function post(path: string, body: string, headers = {}): Promise<[number, string]> {
    const signal = AbortSignal.timeout(ANSWER_MS_MAX);
    const options = { method: "POST", body, headers, signal };
    const response = await fetch(new URL(path, url), options);
    return [response.status, await response.text()];
  }

  async function goodTokens(): Promise<string> {
    const params = { max_tokens: 40, temperature: 1, seed: 11, logprobs: 2 };
    const body = JSON.stringify({ token_ids: [1, 5, 9, 200], sampling_params: params });
    const [status, text] = await post("/inference/v1/generate", body);
    expect(status).toBe(200);
    const [choice] = JSON.parse(text).choices;
    return JSON.stringify([choice.token_ids, choice.logprobs]);
  }

  /** Of the engines: a line for each time that one ends, comes back or serves again. */
  const engineLines = () => log.filter((line) => line.includes('"event":"worker"'));

  /** A 400 says what is wrong in vLLM's shape; a rollout answers each response on a line of its own. */
  function problemOf(status: number, text: string): string | null {
    if (status === 200) {
      return text.includes('"error"') && !text.includes("leave no token") ? "200 with error" : null;
    }
    if (status !== 400) return `status ${status}`;
    const { error } = JSON.parse(text) as { error?: { message?: unknown; code?: unknown } };
    return error?.code === 400 && typeof error.message === "string" ? null : "400 without a reason";
  }

  async function attack(trial: number): Promise<void> {
    const { path, body } = requestOf(new Dice(SEED * 1_000_003 + trial));
    const about = `SEED=${SEED} trial ${trial}: POST ${path} ${body.slice(0, 400)}`;
    try {
      const [status, text] = await post(path, body);
      const problem = problemOf(status, text);
      if (problem !== null) failures.push(`${about}: ${problem}: ${text.slice(0, 300)}`);
    } catch (error) {
      failures.push(`${about}: ${error}`);
    }
  }

  test(`${TRIALS} random settings: 200 or 400 in time, no engine ends, good requests draw the same`, async () => {
    const before = await goodTokens();
    for (let trial = 0; trial < TRIALS; trial += AT_ONCE) {
      const wave = range(Math.min(AT_ONCE, TRIALS - trial));
      await Promise.all(wave.map((i) => attack(trial + i)));
    }
    expect(failures).toEqual([]);
    expect(engineLines()).toEqual([]);
    expect(await goodTokens()).toBe(before);
  });

  test("single settings: a 400 names field, value and bound; what a trainer sends is served", async () => {
    const ask = async (params: string) => {
      const body = `{"token_ids":[1,2,3],"sampling_params":{"max_tokens":3,${params}}}`;
      return await post("/inference/v1/generate", body);
    };
    const all = JSON.stringify(range(VOCABULARY));
    const refused: [string, string][] = [
      ['"temperature":1e-320', "temperature is 1e-320, not 0 or in 1e-10..1000000"],
      ['"temperature":1e999', "temperature is Infinity, not 0 or in 1e-10..1000000"],
      ['"temperature":-0.5', "temperature is -0.5, not 0 or in 1e-10..1000000"],
      ['"repetition_penalty":1e-38', "repetition_penalty is 1e-38, not in 0.001..1000"],
      ['"repetition_penalty":1e999', "repetition_penalty is Infinity, not in 0.001..1000"],
      ['"logit_bias":{"3":1e999}', "logit_bias gives token 3 Infinity, not a number in ±100"],
      [`"min_tokens":2,"stop_token_ids":${all}`, "min_tokens is 2, not 0, as all 1376 tokens"],
      [`"stop_token_ids":[${new Array(4097).fill(1)}]`, "stop_token_ids has 4097 entries"],
      ['"seed":1e18', "seed is 1000000000000000000, not a whole number in"],
    ];
    for (const [params, message] of refused) {
      const [status, text] = await ask(params);
      expect([params.slice(0, 60), status]).toEqual([params.slice(0, 60), 400]);
      expect(text).toContain(message);
    }
    for (const params of [
      ...['"temperature":0', '"temperature":1e-6', '"temperature":1e-10', '"temperature":1000'],
      ...['"top_p":1e-320', '"min_p":1', '"top_k":2147483647', '"repetition_penalty":0.5'],
      ...[`"stop_token_ids":${all}`, '"min_tokens":3,"ignore_eos":true', '"seed":-5'],
      `"logit_bias":{${range(VOCABULARY).map((token) => `"${token}":-100`)}}`,
    ]) {
      const [status] = await ask(params);
      expect([params.slice(0, 60), status]).toEqual([params.slice(0, 60), 200]);
    }
    expect(engineLines()).toEqual([]);
  });

  test("names of groups: too long ones are a 400, wherever they stand", async () => {
    const long = "x".repeat(5000);
    const params = { max_tokens: 2 };
    const bodies: [object, Record<string, string>][] = [
      [{ sampling_params: params }, { "X-Foretoken-Group": long }],
      [{ sampling_params: params, group_id: long }, {}],
      [{ sampling_params: { ...params, extra_args: { group_id: long } } }, {}],
      [{ sampling_params: params, cache_salt: long }, {}],
    ];
    for (const [fields, headers] of bodies) {
      const body = JSON.stringify({ token_ids: [1, 2], ...fields });
      const [status, text] = await post("/inference/v1/generate", body, headers);
      expect(status).toBe(400);
      expect(text).toMatch(/(X-Foretoken-Group|group_id|cache_salt) is .*not a text of 1\.\.1024/);
    }
    const longest = { "X-Foretoken-Group": "x".repeat(1024) };
    const body = JSON.stringify({ token_ids: [1, 2], sampling_params: params });
    expect((await post("/inference/v1/generate", body, longest))[0]).toBe(200);
    expect(engineLines()).toEqual([]);
  });

  test("groups beyond the 4,096 samples of a draft replica: n=5000, and 4,200 equal prompts", async () => {
    const n = rounds(4100, 5000);
    const params = { max_tokens: rounds(1, 4), n, temperature: 1, seed: 3 };
    const one = JSON.stringify({ token_ids: [7], sampling_params: params });
    const [status, text] = await post("/inference/v1/generate", one);
    expect(status).toBe(200);
    expect(JSON.parse(text).choices).toHaveLength(n);
    const count = rounds(1, 4200);
    const equal = JSON.stringify({ token_ids: [8], sampling_params: { max_tokens: 2 } });
    for (let sent = 0; sent < count; sent += 64) {
      const wave = range(Math.min(64, count - sent));
      const answers = await Promise.all(wave.map(() => post("/inference/v1/generate", equal)));
      expect(answers.every(([code]) => code === 200)).toBe(true);
    }
    expect(engineLines()).toEqual([]);
  });
});

async function lines(stream: ReadableStream<Uint8Array>, take: (line: string) => void) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const bytes of stream) {
    const parts = (rest + decoder.decode(bytes, { stream: true })).split("\n");
    rest = parts.pop() ?? "";
    for (const line of parts) take(line);
  }
}
