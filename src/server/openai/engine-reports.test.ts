// Logprobs of prompts and routed experts over stand-ins for vLLM servers: what an engine reports comes out as it was
// written, however the response was divided, moved and interrupted.

import { afterEach, expect, test } from "bun:test";
import { StandInBed, stopBeds } from "../../../test/faults/attacks/stand-in-bed.ts";
import { expertsBase64, promptLogprobs } from "../../../test/faults/stand-in/shapes.ts";
import { standInResponse } from "../../../test/faults/stand-in/tokens.ts";
import type { StandInOptions } from "../../../test/faults/stand-in/vllm-stand-in.ts";
import { eventsOf, tokensIn } from "../../../test/suite/sse.ts";

const GENERATE = "/inference/v1/generate";
const COMPLETIONS = "/v1/completions";

interface Choice {
  readonly token_ids: readonly number[];
  readonly routed_experts: string | null;
  readonly prompt_logprobs?: unknown;
  readonly finish_reason: string | null;
}
interface Answer {
  readonly choices: readonly Choice[];
  readonly prompt_logprobs?: unknown;
}

let bed: StandInBed;
afterEach(stopBeds);

async function started(options: Partial<StandInOptions>, count = 1): Promise<StandInBed> {
  bed = await StandInBed.start(count, () => options);
  return bed;
}

async function ask(path: string, body: object): Promise<Answer> {
  const response = await bed.post(path, body);
  const text = await response.text();
  expect([response.status, text]).toEqual([200, text]);
  return JSON.parse(text);
}

const generate = (token_ids: readonly number[], sampling_params: object, more: object = {}) =>
  ask(GENERATE, { token_ids, sampling_params, ...more });

/** The seeds of prompts keep them apart. */
const promptOf = (i: number) =>
  Array.from({ length: 20 + (i % 7) }, (_, k) => (i * 37 + k * 11) % 900);

test("prompt logprobs: the engine's own come with every endpoint, whatever else is asked for", async () => {
  const { standIns } = await started({});
  const prompt = promptOf(3);
  const params = { max_tokens: 17, logprobs: 1 };
  const whole = await generate(prompt, { ...params, prompt_logprobs: 1 });
  expect(whole.prompt_logprobs).toEqual(promptLogprobs(prompt, 1));
  expect(whole.choices[0]?.token_ids).toEqual(standInResponse({ prompt, tokensMax: 17 }));
  expect((await generate(prompt, params)).prompt_logprobs).toBeNull();
  const before = standIns[0]?.bodies.length ?? 0;
  const wanted = { n: 3, max_tokens: 1, prompt_logprobs: 0 };
  const several = await ask(COMPLETIONS, { prompt: [prompt, promptOf(4)], ...wanted });
  expect(several.choices.map((choice) => choice.prompt_logprobs)).toEqual(
    [3, 3, 3, 4, 4, 4].map((i) => promptLogprobs(promptOf(i), 0)),
  );
  // One response of a group reports on the prompt for all.
  const asked = (standIns[0]?.bodies ?? []).slice(before).filter((body) => {
    return (body.sampling_params as { prompt_logprobs?: number }).prompt_logprobs !== undefined;
  });
  expect(asked.map(({ stream }) => stream)).toEqual([false, false]);
});

test("prompt logprobs: undivided responses, attempts that fail, and older servers bring them too", async () => {
  let arrivals = 0;
  const failing: StandInOptions["faults"] = () => {
    arrivals += 1;
    // No request is among the first twelve so often that it is given up.
    return arrivals <= 12 && arrivals % 3 === 0 ? { kind: "unavailable", afterTokens: 0 } : null;
  };
  for (const options of [{}, { faults: failing }, { generate: "disabled" as const }]) {
    await started(options);
    const wanted = { max_tokens: 14, prompt_logprobs: 2, return_token_ids: true };
    const asks = Array.from({ length: 12 }, (_, i) => {
      const penalty = i % 2 === 0 ? {} : { presence_penalty: 0.5 };
      return ask(COMPLETIONS, { prompt: promptOf(i), ...wanted, ...penalty });
    });
    for (const [i, { choices }] of (await Promise.all(asks)).entries()) {
      if (options.generate === undefined) {
        expect(choices[0]?.prompt_logprobs).toEqual(promptLogprobs(promptOf(i), 2));
      }
      expect(choices[0]?.token_ids).toHaveLength(14);
    }
  }
});

test("prompt logprobs: streams, counts beyond the server's and bad values are a 400 that names the field", async () => {
  await started({});
  const named = [400, expect.stringContaining("prompt_logprobs")];
  for (const value of [1, 21, -1, -2, "1"]) {
    const body = { prompt: [1, 2], prompt_logprobs: value, stream: value === 1 };
    const response = await bed.post(COMPLETIONS, body);
    expect([value, response.status, await response.text()]).toEqual([value, ...named]);
  }
});

const experts = (prompt: readonly number[], { token_ids: tokens }: Choice, from = 0) =>
  expertsBase64([...prompt, ...tokens], from);

/** Faults of the attempts: one in three breaks. */
const BROKEN = [
  ...(["cut", undefined, undefined, "no_reason", undefined, undefined] as const),
  ...(["repeat", undefined, undefined, "abort", undefined, undefined] as const),
  ...(["error_inside", undefined, undefined, "cut_line", undefined, undefined, "ended"] as const),
];

test("experts: those of all chunks become one array, across servers and broken streams", async () => {
  let arrivals = 0;
  const breaking: StandInOptions["faults"] = () => {
    arrivals += 1;
    const kind = BROKEN[arrivals % BROKEN.length];
    return kind === undefined ? null : { kind, afterTokens: arrivals % 5 };
  };
  for (const options of [{}, { faults: breaking }]) {
    await started({ reportsExperts: true, slots: 4, ...options }, 3);
    const params = { max_tokens: 23, return_routed_experts: true };
    const asks = Array.from({ length: 24 }, (_, i) => generate(promptOf(i), params));
    for (const [i, { choices }] of (await Promise.all(asks)).entries()) {
      const [choice] = choices;
      if (choice === undefined) throw new Error("no choice");
      expect(choice.routed_experts).toBe(experts(promptOf(i), choice));
    }
  }
}, 180_000);

test("experts: from a position on, at the end of a stream, as the engines do by default, and not where refused", async () => {
  const { standIns } = await started({ reportsExperts: true });
  const prompt = promptOf(5);
  const params = { max_tokens: 12 };
  const [later] = (await generate(prompt, { ...params, routed_experts_prompt_start: 7 })).choices;
  expect(later?.routed_experts).toBe(experts(prompt, later as Choice, 7));
  const [none] = (await generate(prompt, { ...params, return_routed_experts: false })).choices;
  expect(none?.routed_experts).toBeNull();
  const body = { token_ids: prompt, sampling_params: params, stream: true };
  const { events } = eventsOf<Answer>(await (await bed.post(GENERATE, body)).text());
  const chunks = events.map(({ choices: [choice] }) => choice);
  const reported = chunks.filter((chunk) => (chunk?.routed_experts ?? null) !== null);
  expect(reported).toEqual([chunks.at(-1)]);
  expect(reported[0]?.routed_experts).toBe(expertsBase64([...prompt, ...tokensIn(events)], 0));
  // A stop string ends the response in the engine, which alone has the experts of its last tokens.
  const before = standIns[0]?.bodies.length ?? 0;
  await ask(COMPLETIONS, { prompt, max_tokens: 12, stop: ["nowhere"] });
  const bodies = standIns[0]?.bodies.slice(before).map((one) => one.sampling_params);
  expect(bodies).toMatchObject([{ stop: ["nowhere"], routed_experts_prompt_start: 0 }]);
});

test("experts: an engine without them is a 400 that names it", async () => {
  const { standIns } = await started({});
  const params = { max_tokens: 8, return_routed_experts: true };
  const refused = await bed.post(GENERATE, { token_ids: [1, 2, 3], sampling_params: params });
  const text = await refused.text();
  expect([refused.status, text]).toEqual([400, expect.stringContaining("return_routed_experts")]);
  expect(text).toContain(standIns[0]?.url ?? "no server");
  // A field that vLLM takes and that changes nothing without experts.
  await generate([1, 2, 3], { max_tokens: 8, routed_experts_prompt_start: 2 });
});

test("experts: SkyRL gets them packed, in the smallest type, across chunks", async () => {
  await started({ reportsExperts: true }, 2);
  const prompt = promptOf(2);
  const body = { token_ids: prompt, sampling_params: { max_tokens: 23, logprobs: 0 } };
  const answer = await bed.post("/skyrl/v1/generate", body);
  const text = await answer.text();
  const written = expect.stringContaining('"routed_experts":{"data":"');
  expect([answer.status, text]).toEqual([200, written]);
  const [choice] = JSON.parse(text).choices;
  const npy = Buffer.from(experts(prompt, choice), "base64");
  const { data, shape, dtype } = choice.routed_experts;
  const bytes = Buffer.from(data, "base64");
  expect(bytes.equals(npy.subarray(npy.length - bytes.length))).toBe(true);
  const rows = prompt.length + choice.token_ids.length - 1;
  const [, layers, perToken] = shape;
  expect([shape, dtype]).toEqual([[rows, layers, perToken], "uint8"]);
  expect(bytes.length).toBe(rows * layers * perToken);
  expect(choice.logprobs.content).toHaveLength(choice.token_ids.length);
});
