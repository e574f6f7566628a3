// A sidecar on a real port over stand-ins for vLLM servers on theirs, and a client that compares tokens: for attacks
// on what happens when engines die.

import { type RunningSidecar, startSidecar } from "../../src/serve.ts";
import type { WorkerSource } from "../../src/server/worker-pool.ts";
import { openVllmWorker } from "../../src/worker/vllm/open.ts";
import { openTinyThread, TinyText } from "../golden/requests/tiny-text.ts";
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

export interface Told {
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
    told: { quarantined: string[]; failures: unknown[] },
  ) {
    this.standIns = standIns;
    this.sidecar = sidecar;
    this.quarantined = told.quarantined;
    this.failures = told.failures;
  }

  static async start(
    count: number,
    optionsOf: (index: number) => Partial<StandInOptions>,
  ): Promise<StandInBed> {
    const standIns = await Promise.all(
      Array.from({ length: count }, (_, index) => VllmStandIn.start(optionsOf(index))),
    );
    const told = { quarantined: [] as string[], failures: [] as unknown[] };
    const sources = standIns.map(
      ({ url }): WorkerSource => ({
        name: url,
        keepsWeights: true,
        open: ({ workerId, epoch }) => openVllmWorker({ workerId, epoch, url, limits: LIMITS }),
      }),
    );
    const sidecar = await startSidecar({
      host: "127.0.0.1",
      port: 0,
      apiToken: null,
      bodyBytesMax: 2 ** 24,
      limits: {
        requestsMax: 65_536,
        groupsMax: 4096,
        keptBytesMax: 128 ** 24,
        keptResponsesMax: 65_536,
      },
      policy: "foretoken",
      draft: "grouped",
      chunkTokens: 5,
      poolMemoryBytes: 0,
      sources,
      model: {
        text: new TinyText(),
        openTextThread: openTinyThread,
        eosTokenIds: [EOS],
        names: ["tiny"],
        llama: null,
      },
      retryGraceMs: 1_000,
      weightsTimeoutMs: 10_000,
      harmlessRpc: [],
      version: "0",
      events: {
        workerChanged() {},
        weightsChanged() {},
        weightsNotice() {},
        notLossless() {},
        quarantined: (reason) => told.quarantined.push(reason),
        answered() {},
        controlled() {},
        refused() {},
        iterationEnded() {},
        unread() {},
        failed: (error) => told.failures.push(error),
        broken: (error) => told.failures.push(error),
      },
    });
    return new StandInBed(standIns, sidecar, told);
  }

  async post(path: string, body: object): Promise<Response> {
    const signal = AbortSignal.timeout(DEADLINE_MS);
    const url = new URL(path, this.sidecar.url);
    return await fetch(url, { method: "POST", body: JSON.stringify(body), signal });
  }

  async complete(prompt: readonly number[], more: object = {}): Promise<Told> {
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
export function expectedOf(prompt: readonly number[]): Told {
  const tokens = standInResponse({
    prompt,
    sample: 0,
    tokensMin: 0,
    tokensMax: TOKENS,
    stopTokenIds: [EOS],
  });
  return { status: 200, tokens, message: "" };
}
