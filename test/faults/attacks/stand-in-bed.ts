// A sidecar on a real port over stand-ins for vLLM servers on theirs, and clients that compare tokens: for attacks by
// engines, and on what happens when engines die.

import type { RunningServer } from "../../../src/compose/options.ts";
import { engineKind } from "../../../src/engines/kinds.ts";
import type { VllmLimits } from "../../../src/engines/vllm/limits.ts";
import type { EngineAddress } from "../../../src/server/worker-registry.ts";
import { collecting, serveOptions, startServer, vllmSource } from "../../suite/serve-fixture.ts";
import { eventsOf } from "../../suite/sse.ts";
import { HttpClient } from "../http-client.ts";
import { standInResponse } from "../stand-in/tokens.ts";
import { type StandInOptions, VllmStandIn } from "../stand-in/vllm-stand-in.ts";

export const TOKENS = 24;

/** A server that does not come back at once is given up after some milliseconds. */
const LIMITS: Partial<VllmLimits> = {
  retryMs: 1,
  retryMsMax: 4,
  failedAttemptsMax: 3,
  stallMs: 200,
  pollMs: 100,
  checkMsMax: 10_000,
};

export interface Answer {
  readonly status: number;
  readonly tokens: readonly number[];
  readonly message: string;
}

interface BedOptions {
  readonly limits?: Partial<VllmLimits>;
  /** The address under which the sidecar reaches a stand-in; default: its own. */
  readonly reach?: (url: string) => Promise<string>;
  /** Options of the sidecar in place of the bed's. */
  readonly serve?: Partial<Parameters<typeof serveOptions>[0]>;
}

interface Body {
  readonly choices?: { token_ids?: number[] }[];
  readonly token_ids?: number[];
  readonly error?: { message: string; code?: number };
}

interface Seen {
  readonly quarantined: string[];
  readonly failures: unknown[];
  /** Kinds of the notices about weights. */
  readonly notices: string[];
}

const running = new Set<StandInBed>();

/** Stops the beds that no test has stopped itself. */
export async function stopBeds(): Promise<void> {
  for (const bed of running) await bed.stop();
}

export class StandInBed {
  readonly standIns: readonly VllmStandIn[];
  readonly sidecar: RunningServer;
  readonly http: HttpClient;
  readonly quarantined: string[];
  readonly failures: unknown[];
  readonly notices: string[];

  private constructor(standIns: readonly VllmStandIn[], sidecar: RunningServer, seen: Seen) {
    this.standIns = standIns;
    this.sidecar = sidecar;
    this.http = new HttpClient(sidecar.url);
    this.quarantined = seen.quarantined;
    this.failures = seen.failures;
    this.notices = seen.notices;
  }

  static async start(
    count = 1,
    standIn: (index: number) => Partial<StandInOptions> = () => ({}),
    { limits, reach, serve = {} }: BedOptions = {},
  ): Promise<StandInBed> {
    const standIns = await Promise.all(
      Array.from({ length: count }, (_, index) => VllmStandIn.start(standIn(index))),
    );
    const seen: Seen = { quarantined: [], failures: [], notices: [] };
    const sourceOf = ({ url, token }: EngineAddress) => {
      engineKind(url);
      return vllmSource(url, { ...LIMITS, ...limits }, token);
    };
    const urls = await Promise.all(standIns.map(({ url }) => reach?.(url) ?? url));
    const sidecar = await startServer(
      serveOptions({
        sources: urls.map((url) => sourceOf({ url, token: null })),
        joining: { sourceOf, hasFixed: true, drainMs: 30_000 },
        policy: "foretoken",
        chunkTokens: 5,
        retryGraceMs: 1_000,
        events: {
          ...collecting(seen.failures),
          quarantined: (reason) => seen.quarantined.push(reason),
          weightsNotice: ({ kind }) => seen.notices.push(kind),
        },
        ...serve,
      }),
    );
    const bed = new StandInBed(standIns, sidecar, seen);
    running.add(bed);
    return bed;
  }

  call(method: "GET" | "DELETE", path: string): Promise<Response> {
    return this.http.call(path, { method });
  }

  post(path: string, body: object): Promise<Response> {
    return this.http.post(path, body);
  }

  async complete(prompt: readonly number[], more: object = {}): Promise<Answer> {
    const body = { prompt, max_tokens: TOKENS, return_token_ids: true, logprobs: 1, ...more };
    const { status, text } = await this.http.ask("/v1/completions", body);
    return answerOf([JSON.parse(text)], status);
  }

  async stream(prompt: readonly number[]): Promise<Answer> {
    const body = { prompt, max_tokens: TOKENS, return_token_ids: true, stream: true };
    const { status, text } = await this.http.ask("/v1/completions", body);
    const { events, isDone } = eventsOf<Body>(text);
    const answer = answerOf(events, status);
    if (answer.status !== 200 || isDone) return answer;
    return { ...answer, message: "the stream has no end" };
  }

  async rollOut(prompt: readonly number[]): Promise<Answer> {
    const groups = [{ id: "g", token_ids: prompt, n: 1 }];
    const body = { groups, sampling_params: { max_tokens: TOKENS } };
    const { status, text } = await this.http.ask("/v1/rollouts", body);
    return answerOf([JSON.parse(text.split("\n")[0] ?? "")], status);
  }

  async stop(): Promise<void> {
    running.delete(this);
    await this.sidecar.stop();
    await Promise.all(this.standIns.map((standIn) => standIn.isStopped || standIn.stop()));
  }
}

/** Assembles an answer from its parts. An error without a code is one of the engine: 502. */
function answerOf(parts: readonly Body[], status: number): Answer {
  const error = parts.find((part) => part.error !== undefined)?.error;
  if (error !== undefined) {
    const { code = 502, message } = error;
    return { status: code, tokens: [], message };
  }
  const tokens = parts.flatMap(
    (part) => part.token_ids ?? part.choices?.flatMap((choice) => choice.token_ids ?? []) ?? [],
  );
  return { status, tokens, message: "" };
}

/** The answer of an undisturbed server. */
export function expectedOf(prompt: readonly number[]): Answer {
  return { status: 200, tokens: standInResponse({ prompt, tokensMax: TOKENS }), message: "" };
}
