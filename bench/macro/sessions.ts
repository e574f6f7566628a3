// What sessions save and gain: conversations of several turns against `foretoken serve --llama 2`, with X-Session-ID and
// without it, from the same seeds. Siblings of one root prompt get the same news after each turn. Prints for each turn
// the prompt tokens and those that engines computed, and the tokens drafted and accepted. Counts, not times.
//
//   bun bench/macro/sessions.ts [--roots 3] [--siblings 8] [--turns 4] [--tokens 96] [--staggered] [--deterministic]
//       [--json FILE]

import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";
import Table from "cli-table3";
import { writeReport } from "../harness.ts";

export interface SessionsShape {
  readonly roots: number;
  readonly siblings: number;
  readonly turns: number;
  readonly tokens: number;
  readonly deterministic: boolean;
  /** Siblings run one after the other, as where some are ahead of others. */
  readonly staggered: boolean;
}

export interface TurnRow {
  readonly turn: number;
  readonly promptTokens: number;
  readonly computedTokens: number;
  readonly outputTokens: number;
  readonly draftedTokens: number;
  readonly acceptedTokens: number;
}

export interface SessionsRun {
  readonly rows: readonly TurnRow[];
  /** All tokens of all conversations. */
  readonly texts: readonly (readonly number[])[];
}

const ROOT = resolve(import.meta.dir, "..", "..");
const PROMPTS = readFileSync(join(ROOT, "model", "prompts.jsonl"), "utf8")
  .trim()
  .split("\n")
  .map((line) => (JSON.parse(line) as { prompt: string }).prompt);

class Client {
  readonly #url: string;

  constructor(url: string) {
    this.#url = url;
  }

  async tokens(prompt: string): Promise<number[]> {
    const { tokens } = (await this.#post("/tokenize", { prompt })) as { tokens: number[] };
    return tokens;
  }

  async respond(
    token_ids: readonly number[],
    about: { session: string | null; seed: number; max_tokens: number },
  ): Promise<number[]> {
    const { session, ...sampling_params } = about;
    const headers = session === null ? {} : { "x-session-id": session };
    const body = { token_ids, sampling_params: { ...sampling_params, temperature: 1 } };
    const answer = await this.#post("/inference/v1/generate", body, headers);
    const { choices } = answer as { choices: { token_ids: number[] }[] };
    return choices[0]?.token_ids ?? [];
  }

  /** Over all engines. */
  async count(name: string): Promise<number> {
    const text = await (await fetch(new URL("/metrics", this.#url))).text();
    const lines = text.split("\n").filter((line) => line.startsWith(`${name}{`));
    return lines.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
  }

  async #post(path: string, body: object, headers: Record<string, string> = {}): Promise<unknown> {
    const answer = await fetch(new URL(path, this.#url), {
      method: "POST",
      headers: { "content-type": "application/json", ...headers },
      body: JSON.stringify(body),
    });
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    return await answer.json();
  }
}

export async function run(shape: SessionsShape, hasSessions: boolean): Promise<SessionsRun> {
  const args = ["--llama", "2", "--port", "0", "--log", "off", "--kv-tokens", "16384"];
  if (shape.deterministic) args.push("--deterministic");
  const server = Bun.spawn([process.execPath, join(ROOT, "src", "main.ts"), "serve", ...args], {
    stdout: "pipe",
    stderr: "ignore",
  });
  try {
    return await converse(new Client(await urlOf(server.stdout)), shape, hasSessions);
  } finally {
    server.kill("SIGKILL");
    await server.exited;
  }
}

async function converse(
  client: Client,
  { roots, siblings, turns, tokens, staggered }: SessionsShape,
  hasSessions: boolean,
): Promise<SessionsRun> {
  const pieces = await Promise.all(PROMPTS.slice(0, roots * turns).map((p) => client.tokens(p)));
  const texts = Array.from({ length: roots * siblings }, (_, i) => [...(pieces[i % roots] ?? [])]);
  const rows: TurnRow[] = [];
  const counts = async () => ({
    computedTokens: await client.count("vllm:prompt_tokens_total"),
    draftedTokens: await client.count("vllm:spec_decode_num_draft_tokens_total"),
    acceptedTokens: await client.count("vllm:spec_decode_num_accepted_tokens_total"),
  });
  for (let turn = 0; turn < turns; turn += 1) {
    const before = await counts();
    let promptTokens = 0;
    let outputTokens = 0;
    const respond = async (text: number[], i: number) => {
      if (turn > 0) text.push(...(pieces[turn * roots + (i % roots)] ?? []));
      promptTokens += text.length;
      const session = hasSessions ? `session-${i}` : null;
      const seed = 1000 * turn + i;
      const made = await client.respond(text, { session, seed, max_tokens: tokens });
      outputTokens += made.length;
      text.push(...made);
    };
    // The siblings of a root one after the other, or all at once.
    const size = staggered ? roots : texts.length;
    for (let from = 0; from < texts.length; from += size) {
      const wave = texts.slice(from, from + size);
      await Promise.all(wave.map((text, i) => respond(text, from + i)));
    }
    // Engines report their counters after the last token.
    await Bun.sleep(300);
    const after = await counts();
    rows.push({
      turn: turn + 1,
      promptTokens,
      outputTokens,
      computedTokens: after.computedTokens - before.computedTokens,
      draftedTokens: after.draftedTokens - before.draftedTokens,
      acceptedTokens: after.acceptedTokens - before.acceptedTokens,
    });
  }
  return { rows, texts };
}

async function urlOf(stdout: ReadableStream<Uint8Array>): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  for await (const bytes of stdout) {
    text += decoder.decode(bytes, { stream: true });
    const found = /foretoken on (\S+)\n/.exec(text)?.[1];
    if (found !== undefined) return found;
  }
  throw new Error(`the server ended without an address: ${text}`);
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      roots: { type: "string", default: "3" },
      siblings: { type: "string", default: "8" },
      turns: { type: "string", default: "4" },
      tokens: { type: "string", default: "96" },
      deterministic: { type: "boolean", default: false },
      staggered: { type: "boolean", default: false },
      json: { type: "string" },
    },
  });
  const shape = {
    roots: Number(values.roots),
    siblings: Number(values.siblings),
    turns: Number(values.turns),
    tokens: Number(values.tokens),
    deterministic: values.deterministic,
    staggered: values.staggered,
  };
  const [without, within] = [await run(shape, false), await run(shape, true)];
  const head = [
    "turn",
    "sessions",
    "prompt",
    "computed",
    "output",
    "drafted",
    "accepted",
    "acc/out",
  ];
  const table = new Table({ head, style: { head: [], border: [] } });
  for (const [i, row] of without.rows.entries()) {
    for (const [name, one] of [
      ["no", row],
      ["yes", within.rows[i] ?? row],
    ] as const) {
      const part = (one.acceptedTokens / one.outputTokens).toFixed(3);
      const { turn, promptTokens, computedTokens, outputTokens, draftedTokens } = one;
      const cells = [turn, name, promptTokens, computedTokens, outputTokens, draftedTokens];
      table.push([...cells, one.acceptedTokens, part]);
    }
  }
  console.log(table.toString());
  const isEqual = JSON.stringify(without.texts) === JSON.stringify(within.texts);
  console.log(`texts with and without sessions are ${isEqual ? "the same" : "not the same"}`);
  writeReport(values.json, { shape, without: without.rows, with: within.rows });
}

if (import.meta.main) await main();
