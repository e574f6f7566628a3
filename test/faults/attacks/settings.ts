// Random sampling settings as JSON text, on every endpoint that draws: extremes, denormals, 1e999, wrong types,
// contradictions, every token stopped or forbidden. What attacks of engines by their parameters send.

import { mix32 } from "../../../src/core/base/hash.ts";

/** Vocabulary size of the bundled model. */
export const VOCABULARY = 1376;

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

/** Lengths of responses that are refused or short: the time for long ones depends on the machine. */
const LENGTHS: readonly Json[] = ["0", "-1", "1e999", "1.5", "1e-320", "2147483648", '"3"', "20"];

export class Dice {
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

export const range = (count: number) => Array.from({ length: count }, (_, i) => i);

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
  if (dice.below(8) === 0) setting.set("max_tokens", dice.one(LENGTHS));
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

/** SGLang's names of the fields. */
const SGLANG: Readonly<Record<string, string>> = {
  max_tokens: "max_new_tokens",
  min_tokens: "min_new_tokens",
  seed: "sampling_seed",
};

/** A request to one of the endpoints, with a random setting. */
export function requestOf(dice: Dice): { path: string; body: string } {
  const setting = settingOf(dice);
  const prompt = JSON.stringify(PROMPT.map((token) => token + dice.below(3)));
  const logprobs = dice.below(3) === 0 ? `,"logprobs":${dice.one(WHOLES)}` : "";
  const params = written(setting);
  const sglang = written(new Map([...setting].map(([name, of]) => [SGLANG[name] ?? name, of])));
  const ofRollout = written(
    new Map([...setting].filter(([name]) => !["stop", "n"].includes(name))),
  );
  const group = `{"id":"g${dice.below(1000)}","token_ids":${prompt},"n":${1 + dice.below(3)}}`;
  const stream = dice.one(["true", "false"]);
  const messages = '[{"role":"user","content":"sort 9 27 4"}]';
  const [path, body] = dice.one([
    ["/v1/completions", `{"prompt":${prompt},"stream":${stream},${params}${logprobs}}`],
    ["/v1/chat/completions", `{"messages":${messages},${params}}`],
    ["/generate", `{"input_ids":${prompt},"sampling_params":{${sglang}}}`],
    ["/v1/rollouts", `{"groups":[${group}],"sampling_params":{${ofRollout}}}`],
    ["/inference/v1/generate", `{"token_ids":${prompt},"sampling_params":{${params}${logprobs}}}`],
  ] as const);
  return { path, body };
}
