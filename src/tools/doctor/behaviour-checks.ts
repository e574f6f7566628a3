// Checks of an engine's behaviour: each has the engine generate a few tokens and examines them. All are small; none
// pauses, updates or resets anything.

import { errorText } from "../../core/base/errors.ts";
import { ENDPOINT_PATHS } from "../../engines/vllm/dialect.ts";
import { dividedCheck } from "../../engines/vllm/divided-check.ts";
import { type Made, refusalText } from "../../engines/vllm/trial.ts";
import type { CompletionRequest, Engine } from "./engine.ts";
import { chunksFinding, type Finding, fail, info, ok, warn } from "./finding.ts";

/** Thrown when an engine did not do something that a check asked for. */
export class Refused extends Error {}

export async function make(engine: Engine, request: CompletionRequest): Promise<Made> {
  const answer = await engine.generate(request);
  if (answer.kind === "made") return answer;
  const { endpoint } = engine.server.form;
  throw new Refused(`${ENDPOINT_PATHS[endpoint]}: ${refusalText({ status: 0, ...answer })}`);
}

function greedy(
  engine: Engine,
  tokens: readonly number[],
  maxTokens: number,
  more: Partial<CompletionRequest> = {},
): Promise<Made> {
  return make(engine, { tokens, maxTokens, temperature: 0, ...more });
}

const TEXT = "Count: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20. Again: 1 2 3 4 5 6 7 8 9";

/** At least `length` token ids of repetitive text. */
export async function somePrompt(engine: Engine, length: number): Promise<number[]> {
  const ids = await engine.tokenize(JSON.stringify({ prompt: TEXT }));
  // Without a tokenizer, ids that every vocabulary has.
  const base = ids.length > 0 ? ids : Array.from({ length: 32 }, (_, index) => 10 + index);
  const prompt: number[] = [];
  while (prompt.length < length) prompt.push(...base);
  return prompt;
}

/** Compares the output for one prompt whole and in chunks, at temperature 0. */
export async function checkChunks(engine: Engine): Promise<Finding> {
  try {
    return chunksFinding(await dividedCheck(engine.server));
  } catch (error) {
    throw new Refused(errorText(error), { cause: error });
  }
}

export async function checkLength(engine: Engine, prompt: readonly number[]): Promise<Finding> {
  const check = "stop tokens and lengths";
  const plain = await greedy(engine, prompt, 24);
  if (plain.tokens.length !== 24 || plain.finish !== "length") {
    const reason = `24 tokens asked for with ignore_eos; ${plain.tokens.length} came (${plain.finish})`;
    return fail(check, reason, "chunks cannot be cut there: use another version");
  }
  const stop = plain.tokens[12] ?? 0;
  const stopped = await greedy(engine, prompt, 24, { stopTokenIds: [stop] });
  const length = plain.tokens.indexOf(stop) + 1;
  const isRight = stopped.finish === "stop" && stopped.tokens.length === length;
  if (isRight && stopped.tokens.at(-1) === stop) {
    return ok(check, "a chunk has the length asked for; a stop token is the last one that comes");
  }
  const counts = `${stopped.tokens.length} tokens came (${stopped.finish}), ${length} were expected`;
  return fail(check, `stop_token_ids [${stop}]: ${counts}`, "the end of responses would be wrong");
}

export async function checkSeeds(engine: Engine, prompt: readonly number[]): Promise<Finding> {
  const check = "seeds";
  const draw = (seed: number) =>
    make(engine, { tokens: prompt, maxTokens: 48, temperature: 2, seed });
  const one = await draw(1);
  const again = await draw(1);
  const other = await draw(2);
  const same = one.tokens.every((token, index) => token === again.tokens[index]);
  const differs = one.tokens.some((token, index) => token !== other.tokens[index]);
  if (!differs) {
    const fix = "groups would be copies of one response: is the temperature ignored?";
    return fail(check, "two seeds drew the same 48 tokens at temperature 2", fix);
  }
  if (!same)
    return warn(check, "one seed drew two different texts", "a rollout cannot be repeated there");
  return ok(check, "a seed repeats its text, another one does not");
}

/** Whether a continued chunk finds its KV, and another salt does not. `blockSize`: of KV; the prompt must exceed two blocks. */
export async function checkPrefixCache(
  engine: Engine,
  options: { prompt: readonly number[]; blockSize: number; salt: string },
): Promise<Finding[]> {
  const { prompt, blockSize, salt } = options;
  const check = "prefix cache";
  const first = await greedy(engine, prompt, blockSize, { cacheSalt: salt });
  const tokens = [...prompt, ...first.tokens];
  const next = await greedy(engine, tokens, 1, { cacheSalt: salt });
  if (next.cachedTokens === null) {
    const reason = "the number of cached tokens is not reported";
    return [warn(check, reason, "--enable-prompt-tokens-details")];
  }
  if (next.cachedTokens === 0) {
    const reason = "a continued chunk found nothing of the one before: each is prefilled again";
    return [warn(check, reason, "--enable-prefix-caching")];
  }
  const found = `of ${tokens.length} tokens, ${next.cachedTokens} were cached when a chunk went on (blocks of ${blockSize})`;
  const findings = [
    next.cachedTokens > prompt.length
      ? ok(check, found)
      : info(check, `${found}: generated tokens are not kept`),
  ];
  const salted = await greedy(engine, tokens, 1, { cacheSalt: `${salt}-2` });
  if (salted.cachedTokens === 0) {
    const reason = "another salt finds nothing: KV of old weights is not used";
    return [...findings, ok("cache salt", reason)];
  }
  const wrong = `another salt found ${salted.cachedTokens} tokens: KV of old weights may be used`;
  const fix = "reset the cache after every weight update; use vLLM 0.22 or newer";
  return [...findings, fail("cache salt", wrong, fix)];
}

/** Whether reported logprobs are of the distribution that tokens are sampled from. */
export async function checkLogprobs(engine: Engine, prompt: readonly number[]): Promise<Finding> {
  const check = "logprobs";
  const likeliest = async (temperature: number) => {
    const { top } = await greedy(engine, prompt, 4, { temperature, top: 4 });
    return top[0] ?? [];
  };
  const plain = await likeliest(1);
  const hot = await likeliest(2);
  const spread = (top: readonly number[]) => (top[0] ?? 0) - (top[2] ?? 0);
  const ratio = spread(hot) / spread(plain);
  if (Math.abs(ratio - 0.5) < 0.05) {
    return ok(check, "of the distribution sampled from (processed_logprobs)");
  }
  const reason =
    "at temperature 2 they are those of temperature 1: a trainer's importance weights are wrong at every temperature but 1";
  return warn(check, reason, "--logprobs-mode processed_logprobs");
}
