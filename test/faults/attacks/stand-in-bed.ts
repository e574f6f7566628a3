// A sidecar on a real port over stand-ins for vLLM servers on theirs, and a client that compares tokens: for attacks
// on what happens when engines die.

import { startSidecar } from "../../../src/serve.ts";
import type { RunningSidecar } from "../../../src/serve-options.ts";
import { collecting, serveOptions, vllmSource } from "../../suite/serve-fixture.ts";
import { EOS, standInResponse } from "../stand-in/tokens.ts";
import { type StandInOptions, VllmStandIn } from "../stand-in/vllm-stand-in.ts";

export const DEADLINE_MS = 60_000;
const TOKENS = 24;

/** A server that does not come back at once is given up after some milliseconds. */
const LIMITS = {
  retryMs: 1,
  retryMsMax: 4,
  failedAttemptsMax: 3,
  stallMs: 200,
  pollMs: 100,
  checkMsMax: 2_000,
};

export interface Answer {
  readonly status: number;
  readonly tokens: readonly number[];
  readonly message: string;
}

export class StandInBed {
  readonly standIns: readonly VllmStandIn[];
  readonly sidecar: RunningSidecar;
  readonly quarantined: string[];
  readonly failures: unknown[];

  private constructor(
    standIns: readonly VllmStandIn[],
    sidecar: RunningSidecar,
    seen: { quarantined: string[]; failures: unknown[] },
  ) {
    this.standIns = standIns;
    this.sidecar = sidecar;
    this.quarantined = seen.quarantined;
    this.failures = seen.failures;
  }

  static async start(
    count: number,
    optionsOf: (index: number) => Partial<StandInOptions>,
  ): Promise<StandInBed> {
    const standIns = await Promise.all(
      Array.from({ length: count }, (_, index) => VllmStandIn.start(optionsOf(index))),
    );
    const seen = { quarantined: [] as string[], failures: [] as unknown[] };
    const sourceOf = (url: string) => vllmSource(url, LIMITS);
    const sidecar = await startSidecar(
      serveOptions({
        sources: standIns.map(({ url }) => sourceOf(url)),
        joining: { sourceOf, hasFixed: true, drainMs: 1_000 },
        policy: "foretoken",
        chunkTokens: 5,
        retryGraceMs: 1_000,
        events: {
          ...collecting(seen.failures),
          quarantined: (reason) => seen.quarantined.push(reason),
        },
      }),
    );
    return new StandInBed(standIns, sidecar, seen);
  }

  async call(method: "GET" | "DELETE", path: string): Promise<Response> {
    const signal = AbortSignal.timeout(DEADLINE_MS);
    return await fetch(new URL(path, this.sidecar.url), { method, signal });
  }

  async post(path: string, body: object): Promise<Response> {
    const signal = AbortSignal.timeout(DEADLINE_MS);
    const url = new URL(path, this.sidecar.url);
    return await fetch(url, { method: "POST", body: JSON.stringify(body), signal });
  }

  async complete(prompt: readonly number[], more: object = {}): Promise<Answer> {
    const body = { prompt, max_tokens: TOKENS, return_token_ids: true, ...more };
    const answer = await this.post("/v1/completions", body);
    const json = (await answer.json()) as {
      choices?: { token_ids: number[] }[];
      error?: { message: string };
    };
    return {
      status: answer.status,
      tokens: json.choices?.[0]?.token_ids ?? [],
      message: json.error?.message ?? "",
    };
  }

  async metric(name: string): Promise<number> {
    const text = await (await fetch(new URL("/metrics", this.sidecar.url))).text();
    const line = text.split("\n").find((one) => one.startsWith(`${name}{`));
    return Number(line?.split(" ").at(-1));
  }

  async stop(): Promise<void> {
    await this.sidecar.stop();
    await Promise.all(this.standIns.map((standIn) => standIn.stop()));
  }
}

/** What an undisturbed server answers. */
export function expectedOf(prompt: readonly number[]): Answer {
  const tokens = standInResponse({
    prompt,
    sample: 0,
    tokensMin: 0,
    tokensMax: TOKENS,
    stopTokenIds: [EOS],
  });
  return { status: 200, tokens, message: "" };
}
