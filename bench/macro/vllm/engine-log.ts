// What vllm_bench.py logs inside each server, as objects. Times are in seconds since 1970.

import { post } from "./systems.ts";

export interface Step {
  readonly beginS: number;
  readonly endS: number;
  readonly running: number;
  readonly waiting: number;
  /** Requests and rows (tokens computed) in the step; rows of prefill and of drafts among them. */
  readonly requests: number;
  readonly rows: number;
  readonly prefillRows: number;
  readonly draftRows: number;
  /** 0..1, of the blocks, by running requests. */
  readonly kvShare: number;
  readonly tokensMade: number;
  /** Requests that the server has after the step. */
  readonly unfinished: number;
  /** CPU seconds of the engine's thread: with the executor `uni` on a CPU, what the step takes without other load. */
  readonly cpuS: number;
}

/** A request begins on a server, or goes on there after a preemption. */
export interface Prefill {
  readonly atS: number;
  readonly server: number;
  readonly group: number;
  readonly sample: number;
  readonly promptTokens: number;
  /** Output tokens that it brings. */
  readonly madeTokens: number;
  /** Tokens that were found: in the server's prefix cache, or in the pool. */
  readonly foundTokens: number;
  readonly computedTokens: number;
  readonly isResumed: boolean;
}

/** A request leaves a server: its chunk, or its response, is over. */
export interface End {
  readonly atS: number;
  readonly server: number;
  readonly group: number;
  readonly sample: number;
  readonly madeTokens: number;
  readonly isStopped: boolean;
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

async function call(server: string, method: string, args: readonly unknown[]): Promise<unknown> {
  const answer = await post(`${server}/collective_rpc`, { method, args });
  return (answer as { results: unknown[] }).results[0];
}

export async function tellPlan(urls: readonly string[], plan: Plan): Promise<void> {
  const args = [plan.eos, plan.prompts, plan.texts];
  await Promise.all(urls.map((url) => call(url, "bench_plan", args)));
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
  const prefills = raw.flatMap((log, server) => log.prefills.map((row) => prefillOf(row, server)));
  const ends = raw.flatMap((log, server) => log.ends.map((row) => endOf(row, server)));
  return {
    steps: raw.map((log) => log.steps.map(stepOf)),
    prefills: prefills.toSorted((a, b) => a.atS - b.atS),
    ends: ends.toSorted((a, b) => a.atS - b.atS),
    proposeUs: raw.reduce((sum, log) => sum + log.propose_us, 0),
  };
}

function stepOf(row: readonly number[]): Step {
  const [beginS = 0, endS = 0, running = 0, waiting = 0, requests = 0, rows = 0] = row;
  const [prefillRows = 0, draftRows = 0, kvShare = 0, tokensMade = 0] = row.slice(6);
  const [unfinished = 0, cpuS = 0] = row.slice(10);
  return {
    ...{ beginS, endS, running, waiting, requests, rows },
    ...{ prefillRows, draftRows, kvShare, tokensMade, unfinished, cpuS },
  };
}

function prefillOf(row: readonly number[], server: number): Prefill {
  const [atS = 0, group = 0, sample = 0, promptTokens = 0, madeTokens = 0] = row;
  const [foundTokens = 0, computedTokens = 0, resumed = 0] = row.slice(5);
  return {
    ...{ atS, server, group, sample, promptTokens, madeTokens, foundTokens, computedTokens },
    isResumed: resumed === 1,
  };
}

function endOf(row: readonly number[], server: number): End {
  const [atS = 0, group = 0, sample = 0, madeTokens = 0, stopped = 0] = row;
  return { atS, server, group, sample, madeTokens, isStopped: stopped === 1 };
}
