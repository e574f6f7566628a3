// The public `openai` client against `foretoken serve` as a process of its own, over two embedded engines.

import { beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import OpenAI from "openai";
import { servedTool } from "../faults/served-tool.ts";
import { engineMissing } from "./tool.ts";

setDefaultTimeout(180_000);

const missing = engineMissing();
if (missing !== null) console.warn(`skipped: ${missing}`);

const PROMPT = "Compute 3 + 4.";

/** vLLM's own fields, which the client's types do not know. */
const IDS = { return_token_ids: true } as object;

interface WithIds {
  readonly token_ids: number[];
}

describe.skipIf(missing !== null)("openai client", () => {
  // Portable kernels: the same seed gives the same text, whatever else is in the batch.
  const server = servedTool("--llama", "2", "--log", "off", "--deterministic");
  let client: OpenAI;
  let model: string;

  beforeAll(async () => {
    client = new OpenAI({
      baseURL: new URL("/v1", server().url).href,
      apiKey: "none",
      maxRetries: 0,
    });
    const { data } = await client.models.list();
    model = data[0]?.id ?? "";
  });

  test("completions: n responses with logprobs of every token", async () => {
    const answer = await client.completions.create({
      model,
      prompt: PROMPT,
      max_tokens: 12,
      n: 8,
      logprobs: 0,
      ...IDS,
    });
    expect(answer.choices.map(({ index }) => index)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
    for (const choice of answer.choices) {
      const ids = (choice as unknown as WithIds).token_ids;
      const { token_logprobs: logprobs = [] } = choice.logprobs ?? {};
      expect(logprobs.length).toBe(ids.length);
      for (const logprob of logprobs) expect(logprob).toBeLessThanOrEqual(0);
    }
    const lengths = answer.choices.map((choice) => (choice as unknown as WithIds).token_ids.length);
    const sum = lengths.reduce((total, length) => total + length, 0);
    expect(answer.usage?.completion_tokens).toBe(sum);
  });

  test("chat: an answer with logprobs, and the same as a stream", async () => {
    const asked = {
      model,
      messages: [{ role: "user" as const, content: PROMPT }],
      max_completion_tokens: 24,
      seed: 3,
      logprobs: true,
    };
    const whole = await client.chat.completions.create(asked);
    const [choice] = whole.choices;
    expect(choice?.message.role).toBe("assistant");
    expect(choice?.logprobs?.content?.length).toBe(whole.usage?.completion_tokens ?? -1);
    let text = "";
    let logprobs = 0;
    for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
      text += chunk.choices[0]?.delta.content ?? "";
      logprobs += chunk.choices[0]?.logprobs?.content?.length ?? 0;
    }
    expect(text).toBe(choice?.message.content ?? "");
    expect(logprobs).toBe(choice?.logprobs?.content?.length ?? -1);
  });

  test("rollouts: without --chunk-tokens responses are divided while others wait, and one alone is not", async () => {
    const chunksOf = async (n: number) => {
      const sampling_params = { max_tokens: 150, ignore_eos: true };
      const body = JSON.stringify({ n, sampling_params, groups: [{ id: "a", prompt: PROMPT }] });
      const answer = await fetch(new URL("/v1/rollouts", client.baseURL), { method: "POST", body });
      const lines = (await answer.text()).trimEnd().split("\n").slice(0, n);
      return lines.map((line) => {
        const { chunks } = JSON.parse(line) as { chunks: { tokens: number }[] };
        return chunks.map(({ tokens }) => tokens);
      });
    };
    expect(await chunksOf(1)).toEqual([[150]]);
    // A 256th of the engines' 32,768 tokens of KV.
    expect(await chunksOf(80)).toContainEqual([128, 22]);
  });

  test("errors: a bad field is the client's BadRequestError, which names it", async () => {
    const error = await errorOf(
      client.completions.create({ model, prompt: PROMPT, temperature: -1 }),
    );
    expect(error).toBeInstanceOf(OpenAI.BadRequestError);
    expect(error).toMatchObject({ status: 400, param: "temperature" });
  });

  test("errors: a model that is not served is the client's NotFoundError", async () => {
    const error = await errorOf(client.completions.create({ model: "other", prompt: PROMPT }));
    expect(error).toBeInstanceOf(OpenAI.NotFoundError);
  });
});

async function errorOf(asked: PromiseLike<unknown>): Promise<unknown> {
  try {
    await asked;
    return null;
  } catch (error) {
    return error;
  }
}
