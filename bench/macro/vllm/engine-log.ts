// What vllm_bench.py logs inside each server, as objects, and the calls that it and the servers answer. Times are in seconds
// since 1970.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../../../test/vllm/fleet.ts";

const STEP = [
  "beginS",
  "endS",
  "running",
  "waiting",
  /** Requests and rows (tokens computed) in the step; rows of prefill and of drafts among them. */
  "requests",
  "rows",
  "prefillRows",
  "draftRows",
  /** 0..1, of the blocks, by running requests. */
  "kvShare",
  "tokensMade",
  /** Requests that the server has after the step. */
  "unfinished",
  /** CPU seconds of the engine's thread: with the executor `uni` on a CPU, what the step takes without other load. */
  "cpuS",
] as const;
export type Step = Row<(typeof STEP)[number]>;

/** A request begins on a server, or goes on there after a preemption (`resumed`: 1). */
const PREFILL = [
  "atS",
  "group",
  "sample",
  "promptTokens",
  /** Output tokens that it brings. */
  "madeTokens",
  /** Tokens that were found: in the server's prefix cache, or in the pool. */
  "foundTokens",
  "computedTokens",
  "resumed",
] as const;
export type Prefill = Row<(typeof PREFILL)[number]> & { readonly server: number };

/** A request leaves a server: its chunk, or its response (`stopped`: 1), is over. */
const END = ["atS", "group", "sample", "madeTokens", "stopped"] as const;
export type End = Row<(typeof END)[number]> & { readonly server: number };

type Row<Name extends string> = Readonly<Record<Name, number>>;

function rowOf<Name extends string>(names: readonly Name[], values: readonly number[]): Row<Name> {
  return Object.fromEntries(names.map((name, i) => [name, values[i] ?? 0])) as Row<Name>;
}

export interface EngineLog {
  /** The steps of each server. */
  readonly steps: readonly (readonly Step[])[];
  /** The prefills of all servers, in order of time. */
  readonly prefills: readonly Prefill[];
  readonly ends: readonly End[];
  /** CPU of the step's own thread, microseconds. */
  readonly proposeUs: number;
}

/** Token ids of the responses to one prompt. */
export type Texts = readonly (readonly number[])[];

export interface Plan {
  readonly eos: number;
  readonly prompts: readonly (readonly number[])[];
  /** Texts of the responses by group; null: the model draws them. */
  readonly texts: readonly Texts[] | null;
}

export async function post(
  url: string,
  body: object,
  headers: Record<string, string> = {},
): Promise<unknown> {
  const answer = await fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: JSON.stringify(body),
    // A response may wait for minutes; Bun's own limit is five.
    timeout: false,
  } as RequestInit);
  if (!answer.ok) throw new Error(`${url}: ${answer.status} ${await answer.text()}`);
  return await answer.json();
}

async function call(server: string, method: string, args: readonly unknown[]): Promise<unknown> {
  const answer = await post(`${server}/collective_rpc`, { method, args });
  return (answer as { results: unknown[] }).results[0];
}

export async function tellPlan(
  urls: readonly string[],
  { eos, prompts, texts }: Plan,
): Promise<void> {
  await Promise.all(urls.map((url) => call(url, "bench_plan", [eos, prompts, texts])));
}

interface RawLog {
  readonly steps: readonly number[][];
  readonly prefills: readonly number[][];
  readonly ends: readonly number[][];
  readonly propose_us: number;
}

/** The entries since the plan was sent, or since the last reading. */
export async function readLog(urls: readonly string[]): Promise<EngineLog> {
  const raw = (await Promise.all(urls.map((url) => call(url, "bench_read", [])))) as RawLog[];
  const inOrder = <Name extends string>(
    names: readonly (Name | "atS")[],
    rows: (log: RawLog) => readonly number[][],
  ) =>
    raw
      .flatMap((log, server) => rows(log).map((row) => ({ server, ...rowOf(names, row) })))
      .toSorted((a, b) => a.atS - b.atS);
  return {
    steps: raw.map(({ steps }) => steps.map((row) => rowOf(STEP, row))),
    prefills: inOrder(PREFILL, ({ prefills }) => prefills),
    ends: inOrder(END, ({ ends }) => ends),
    proposeUs: raw.reduce((sum, log) => sum + log.propose_us, 0),
  };
}

/** Token ids of the bundled prompts. */
export async function promptsOf(url: string, model: string, count: number): Promise<number[][]> {
  const text = readFileSync(join(ROOT, "model", "prompts.jsonl"), "utf8");
  const lines = text.split("\n").filter((line) => line !== "");
  if (lines.length < count) throw new Error(`${count} prompts are asked for, of ${lines.length}`);
  const prompts: number[][] = [];
  for (const line of lines.slice(0, count)) {
    const { prompt } = JSON.parse(line) as { prompt: string };
    const body = { model, prompt, add_special_tokens: false };
    const { tokens } = (await post(`${url}/tokenize`, body)) as { tokens: number[] };
    prompts.push(tokens);
  }
  return prompts;
}
