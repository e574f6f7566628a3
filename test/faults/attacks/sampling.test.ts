// Attacks real embedded engines behind a real `foretoken serve` with random sampling settings. Each request must be
// answered within its deadline with 200 or a 400 in vLLM's shape; no engine may end; and a good request gives the same
// tokens before and after.

import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { engineMissing } from "../../e2e/tool.ts";
import { ANSWER_MS_MAX } from "../http-client.ts";
import { servedTool } from "../served-tool.ts";
import { rounds } from "./scale.ts";
import { Dice, range, requestOf } from "./settings.ts";

setDefaultTimeout(600_000);

const SEED = Number(process.env.SEED ?? 1);
const TRIALS = rounds(60, 1200);
const AT_ONCE = 8;
/** Thousands of responses on kernels that are slow. */
const LARGE_MS_MAX = 240_000;
const missing = engineMissing() !== null;

const CAPACITY = ["--deterministic", "--slots", "8", "--kv-tokens", "8192"];

describe.skipIf(missing)("sampling settings", () => {
  const open = servedTool("--llama", "2", ...CAPACITY, "--log", "json");

  async function post(path: string, body: string, msMax = ANSWER_MS_MAX) {
    const signal = AbortSignal.timeout(msMax);
    const answer = await open().http.call(path, { method: "POST", body, signal });
    return [answer.status, await answer.text()] as const;
  }

  const generate = (fields: object, msMax?: number) =>
    post("/inference/v1/generate", JSON.stringify(fields), msMax);

  async function goodTokens(): Promise<string> {
    const params = { max_tokens: 40, temperature: 1, seed: 11, logprobs: 2 };
    const [status, text] = await generate({ token_ids: [1, 5, 9, 200], sampling_params: params });
    expect(status).toBe(200);
    const [choice] = JSON.parse(text).choices;
    return JSON.stringify([choice.token_ids, choice.logprobs]);
  }

  /** No engine ended or was lost. */
  function expectUnharmed(): void {
    expect(open().hasEnded).toBe(false);
    const lost = /"event":"worker".*"state":"(?!ready)/;
    expect(open().lines.filter((line) => lost.test(line))).toEqual([]);
  }

  async function attack(trial: number): Promise<string | null> {
    const { path, body } = requestOf(new Dice(SEED * 1_000_003 + trial));
    const about = `SEED=${SEED} trial ${trial}: POST ${path} ${body.slice(0, 400)}`;
    try {
      const [status, text] = await post(path, body);
      const problem = problemOf(status, text);
      return problem === null ? null : `${about}: ${problem}: ${text.slice(0, 300)}`;
    } catch (error) {
      return `${about}: ${error}`;
    }
  }

  test(`${TRIALS} random settings: 200 or 400 in time, and good requests draw the same`, async () => {
    const before = await goodTokens();
    const failures: (string | null)[] = [];
    for (let trial = 0; trial < TRIALS; trial += AT_ONCE) {
      const wave = range(Math.min(AT_ONCE, TRIALS - trial));
      failures.push(...(await Promise.all(wave.map((i) => attack(trial + i)))));
    }
    expect(failures.filter((failure) => failure !== null)).toEqual([]);
    expectUnharmed();
    expect(await goodTokens()).toBe(before);
  });

  test("groups beyond the 4,096 samples of a draft replica: n=5000, and 4,200 equal prompts", async () => {
    const n = rounds(4100, 5000);
    const sampling_params = { max_tokens: rounds(1, 3), n, temperature: 1, seed: 3 };
    const [status, text] = await generate({ token_ids: [7], sampling_params }, LARGE_MS_MAX);
    expect(status).toBe(200);
    expect(JSON.parse(text).choices).toHaveLength(n);
    const count = rounds(1, 4200);
    const equal = { token_ids: [8], sampling_params: { max_tokens: 2 } };
    for (let sent = 0; sent < count; sent += 64) {
      const wave = range(Math.min(64, count - sent));
      const answers = await Promise.all(wave.map(() => generate(equal)));
      expect(answers.every(([code]) => code === 200)).toBe(true);
    }
    expectUnharmed();
  });
});

/** A 400 says what is wrong in vLLM's shape; a rollout answers each response on a line of its own. */
function problemOf(status: number, text: string): string | null {
  if (status === 200) return text.includes('"error"') ? "200 with an error" : null;
  if (status !== 400) return `status ${status}`;
  const { error } = JSON.parse(text) as { error?: { message?: unknown; code?: unknown } };
  return error?.code === 400 && typeof error.message === "string" ? null : "400 without a reason";
}
