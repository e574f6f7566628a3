// Every stream, put together again, is the answer that does not stream, whenever the client reads.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { PlaneFixture } from "../../../test/golden/requests/plane-fixture.ts";
import { followedJob } from "../../../test/suite/followed-job.ts";
import { eventsOf } from "../../../test/suite/sse.ts";
import { parseChat } from "./chat.ts";
import { parseCompletions } from "./completions.ts";
import { parseGenerate } from "./generate.ts";
import type { ParsedRequest } from "./plan.ts";

interface Choice {
  index: number;
  text?: string;
  delta?: { content?: string };
  message?: { content: string };
  logprobs: Record<string, unknown[]> | null;
  token_ids: number[] | null;
  finish_reason: string | null;
  stop_reason: unknown;
  weight_versions?: unknown;
  prompt_token_ids?: number[] | null;
}

interface Body {
  choices: Choice[];
  usage?: unknown;
  prompt_token_ids?: number[] | null;
}

/** A client's final view of the choices: what of each arrived under its index, joined. */
function seen(bodies: readonly Body[]) {
  const all = bodies.flatMap(({ choices }) => choices);
  const indexes = [...new Set(all.map(({ index }) => index))].sort((a, b) => a - b);
  const choices = indexes.map((index) => {
    const own = all.filter((choice) => choice.index === index);
    const ends = own.filter(({ finish_reason: finish }) => finish !== null);
    expect(ends).toEqual(own.slice(-1));
    const names = new Set(own.flatMap(({ logprobs }) => Object.keys(logprobs ?? {})));
    const joined = [...names].map((name) => [
      name,
      own.flatMap((one) => one.logprobs?.[name] ?? []),
    ]);
    return {
      text: own.map((one) => one.text ?? (one.delta ?? one.message)?.content ?? "").join(""),
      ids: own.flatMap((one) => one.token_ids ?? []),
      logprobs: Object.fromEntries(joined),
      prompt: own.find((one) => one.prompt_token_ids)?.prompt_token_ids,
      end: ends.map((one) => [one.finish_reason, one.stop_reason, one.weight_versions]),
    };
  });
  const usage = bodies.findLast((body) => body.usage)?.usage;
  return { choices, usage, prompt: bodies.find((body) => body.prompt_token_ids)?.prompt_token_ids };
}

const common = {
  return_token_ids: fc.boolean(),
  return_tokens_as_token_ids: fc.boolean(),
  include_stop_str_in_output: fc.boolean(),
  max_tokens: fc.integer({ min: 1, max: 30 }),
  n: fc.integer({ min: 1, max: 3 }),
  stop: fc.array(fc.constantFrom("1", " 2", "34", "5 ", "0 1"), { maxLength: 2 }),
};
const stream = { stream: true, stream_options: { include_usage: true } };

const TOPS = fc.constantFrom(null, 0, 2);
const requests = fc.oneof(
  fc.record({ ...common, logprobs: TOPS, echo: fc.boolean() }).map((own) => {
    const echo = own.echo && own.logprobs === null;
    return { parse: parseCompletions, body: { ...own, ...stream, echo, prompt: ["ab", "c"] } };
  }),
  fc.record({ ...common, logprobs: fc.boolean() }).map((own) => ({
    parse: parseChat,
    body: { ...own, ...stream, messages: [{ role: "user", content: "hi" }] },
  })),
  fc
    .record({ ...common, mode: fc.constantFrom("text", "tokens"), logprobs: TOPS })
    .map(({ return_token_ids, return_tokens_as_token_ids: _, mode: output_mode, ...params }) => {
      const own = { ...stream, return_token_ids, output_mode, token_ids: [1, 2] };
      return { parse: parseGenerate, body: { ...own, sampling_params: params } };
    }),
);

const scenarios = fc.record({
  request: requests,
  /** Engine steps before each read. */
  pauses: fc.array(fc.nat({ max: 4 }), { maxLength: 10 }),
  chunkTokens: fc.integer({ min: 1, max: 9 }),
  length: fc.integer({ min: 1, max: 35 }),
});

test("streams: put together, they are the answer that does not stream", async () => {
  await fc.assert(
    fc.asyncProperty(scenarios, async ({ request, pauses, chunkTokens, length }) => {
      const lengthOf = ({ requestId }: { requestId: number }) => length + requestId;
      const fixture = new PlaneFixture({ lengthOf, chunkTokens });
      try {
        const parse = request.parse as (body: object, source: string) => ParsedRequest;
        const streamed = await followedJob<object>(fixture, parse, request.body);
        const { job, answer, follow, ends, crashes } = streamed;
        const written = await fixture.until(read(follow(), fixture, pauses));
        const { events, isDone } = eventsOf(written);
        expect([isDone, ends, crashes]).toEqual([true, ["closed"], []]);
        const whole = JSON.parse(answer.whole(job));
        expect(seen(events as Body[])).toEqual(seen([whole]));
      } finally {
        await fixture.close();
      }
    }),
    { numRuns: 80 },
  );
}, 180_000);

async function read(
  response: Response,
  fixture: PlaneFixture,
  pauses: readonly number[],
): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  let turn = 0;
  for await (const bytes of response.body ?? []) {
    text += decoder.decode(bytes, { stream: true });
    await fixture.step(pauses[turn] ?? 0);
    turn += 1;
  }
  return text;
}
