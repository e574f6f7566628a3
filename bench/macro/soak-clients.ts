// Clients of a soak: each comes with a socket of its own, asks for the responses of a new group or follows the stream of
// tokens, and reads to the end or vanishes on the way. Responses that are read are compared token by token.

import { type IncomingMessage, request } from "node:http";
import { fold32, mix32 } from "../../src/core/base/hash.ts";
import { standInResponse } from "../../test/faults/stand-in/tokens.ts";

export interface Tally {
  /** Responses that came whole and right. */
  responses: number;
  tokens: number;
  /** Clients that left on the way. */
  vanished: number;
  followed: number;
  refused: number;
  /** What was wrong. */
  readonly problems: string[];
}

export interface ClientOptions {
  readonly url: URL;
  /** Responses of a group. */
  readonly responses: number;
  readonly tokensMax: number;
  readonly tally: Tally;
}

const PROBLEMS_MAX = 20;
const PROMPT_TOKENS = 24;
const VANISH_MS_MAX = 1_500;
const FOLLOW_MS_MAX = 5_000;
const ANSWER_MS_MAX = 240_000;

/** The client with this number: what it does follows from it. */
export async function runClient(number: number, options: ClientOptions): Promise<void> {
  const { tally } = options;
  const draw = (what: number, below: number) => fold32(mix32(number), what) % below;
  try {
    const kind = draw(0, 20);
    if (kind < 13) await read(number, options, kind < 7);
    else if (kind < 17) await vanish(number, options, draw(1, VANISH_MS_MAX));
    else if (kind < 19) await follow(options, draw(1, FOLLOW_MS_MAX), draw(2, 2) === 0);
    else await beRefused(options);
  } catch (error) {
    const problem = error instanceof Error ? error.message : String(error);
    if (tally.problems.length < PROBLEMS_MAX) tally.problems.push(`client ${number}: ${problem}`);
  }
}

function promptOf(number: number): number[] {
  return Array.from({ length: PROMPT_TOKENS }, (_, i) => 3 + (fold32(number, i) % 900));
}

/** Unequal lengths, so that groups do not end together. */
function tokensMaxOf(number: number, { tokensMax }: ClientOptions): number {
  return 1 + (mix32(number ^ 0x5eed) % tokensMax);
}

function bodyOf(number: number, options: ClientOptions, stream: boolean): string {
  return JSON.stringify({
    prompt: promptOf(number),
    n: options.responses,
    max_tokens: tokensMaxOf(number, options),
    return_token_ids: true,
    // The tokenizer's end of text is not the stand-ins'.
    ignore_eos: true,
    stream,
  });
}

interface Choice {
  readonly index: number;
  readonly token_ids?: readonly number[];
}

async function read(number: number, options: ClientOptions, stream: boolean): Promise<void> {
  const answer = await post(options.url, "/v1/completions", bodyOf(number, options, stream));
  const text = await whole(answer);
  if (answer.statusCode !== 200) throw new Error(`${answer.statusCode}: ${text.slice(0, 200)}`);
  const got = new Map<number, number[]>();
  for (const { index, token_ids = [] } of stream ? choicesIn(text) : JSON.parse(text).choices) {
    const tokens = got.get(index) ?? [];
    for (const token of token_ids) tokens.push(token);
    got.set(index, tokens);
  }
  const { tally, responses } = options;
  for (let sample = 0; sample < responses; sample += 1) {
    const expected = standInResponse({
      prompt: promptOf(number),
      sample,
      tokensMin: 0,
      tokensMax: tokensMaxOf(number, options),
      stopTokenIds: [],
    });
    const tokens = got.get(sample) ?? [];
    if (tokens.join() !== expected.join()) {
      throw new Error(`response ${sample} has ${tokens.length} tokens of ${expected.length}`);
    }
    tally.responses += 1;
    tally.tokens += tokens.length;
  }
}

function choicesIn(text: string): Choice[] {
  if (!text.endsWith("data: [DONE]\n\n")) throw new Error("the stream has no end");
  const lines = text.split("\n").filter((line) => line.startsWith("data: {"));
  return lines.flatMap(
    (line) => (JSON.parse(line.slice("data: ".length)) as { choices: Choice[] }).choices,
  );
}

async function vanish(number: number, options: ClientOptions, afterMs: number): Promise<void> {
  const cut = new AbortController();
  const body = bodyOf(number, options, true);
  const answer = post(options.url, "/v1/completions", body, cut.signal);
  const reading = answer.then(whole).catch(() => "");
  await Promise.race([reading, Bun.sleep(afterMs)]);
  cut.abort();
  await reading;
  options.tally.vanished += 1;
}

async function follow(
  { url, tally }: ClientOptions,
  forMs: number,
  isClosed: boolean,
): Promise<void> {
  const socket = new WebSocket(new URL("/v1/stream", url).href.replace("http", "ws"));
  const ended = new Promise<void>((resolve) => socket.addEventListener("close", () => resolve()));
  socket.addEventListener("open", () => socket.send('{"subscribe":{"all":true}}'));
  await Promise.race([ended, Bun.sleep(forMs)]);
  if (isClosed) socket.close();
  else socket.terminate();
  await ended;
  tally.followed += 1;
}

async function beRefused({ url, tally }: ClientOptions): Promise<void> {
  const answer = await post(url, "/v1/completions", '{"prompt": [1], "max_tokens": -1}');
  await whole(answer);
  if (answer.statusCode !== 400) throw new Error(`${answer.statusCode} for a bad field`);
  tally.refused += 1;
}

function post(
  url: URL,
  path: string,
  body: string,
  signal?: AbortSignal,
): Promise<IncomingMessage> {
  const { hostname, port } = url;
  const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(body) };
  return new Promise((resolve, reject) => {
    const call = request(
      { hostname, port, path, method: "POST", agent: false, headers, ...(signal && { signal }) },
      resolve,
    );
    call.setTimeout(ANSWER_MS_MAX, () => call.destroy(new Error("no answer in time")));
    call.on("error", reject);
    call.end(body);
  });
}

async function whole(answer: IncomingMessage): Promise<string> {
  const parts: Buffer[] = [];
  for await (const part of answer) parts.push(part as Buffer);
  return Buffer.concat(parts).toString();
}
