// HTTP to one server: whole answers and streams. It does not interpret them.
//
// It uses node:http because `fetch` in Bun opens at most 256 requests of a process at the same time (only an environment
// variable set before the start changes that), and all others, health checks too, wait unnoticed. `fetch` also uses the
// proxy of HTTP_PROXY for every address, and a cluster's proxy often cannot reach addresses inside the cluster.

import http from "node:http";
import https from "node:https";
import { AppError } from "../../core/base/errors.ts";
import { parseJson } from "../../proto/json.ts";
import { type TimerClock, wallTimers } from "./clock.ts";
import { VLLM_LIMITS } from "./limits.ts";
import { errorMessage } from "./stream-event.ts";

export interface HttpCall {
  readonly method: "GET" | "POST";
  /** Path with its query. */
  readonly path: string;
  /** JSON text; null: no body. */
  readonly body: string | null;
  /** The data parallel rank that must answer. Absent: any. */
  readonly rank?: number;
}

/** vLLM's header for a data parallel rank, from 0 on. */
const RANK_HEADER = "x-data-parallel-rank";

export type HttpAnswer =
  | { readonly kind: "answer"; readonly status: number; readonly body: string }
  /** There was no complete answer. `isRefused`: the connection was refused. */
  | { readonly kind: "unreachable"; readonly message: string; readonly isRefused?: boolean };

export interface HttpStreamListener {
  /** `bytes` are valid during the call only. */
  data(bytes: Buffer): void;
  /** The end of the answer. `message` null: the body is complete. */
  ended(message: string | null): void;
  /** Another status than 200, with its body; `ended` is not called. `retryAfterMs` null: not given. */
  refused(status: number, body: string, retryAfterMs: number | null): void;
}

/** Idle connections are closed earlier than by the server (uvicorn: 5 s), so that no request uses a closing one. */
const IDLE_MS_MAX = 3_000;
const IDLE_CONNECTIONS_MAX = 256;

export class HttpClient {
  /** URL without a final slash. */
  readonly url: string;
  readonly #base: URL;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #clock: TimerClock;
  readonly #answerBytesMax: number;
  readonly #agent: http.Agent;
  readonly #send: typeof http.request;

  /** @throws AppError invalid_config. */
  constructor(options: {
    url: string;
    apiKey: string | null;
    clock: TimerClock;
    answerBytesMax: number;
  }) {
    this.#base = parsedUrl(options.url);
    this.url = options.url.replace(/\/+$/, "");
    this.#headers = options.apiKey === null ? {} : { authorization: `Bearer ${options.apiKey}` };
    this.#clock = options.clock;
    this.#answerBytesMax = options.answerBytesMax;
    const secure = this.#base.protocol === "https:";
    const idle = { keepAlive: true, maxFreeSockets: IDLE_CONNECTIONS_MAX, timeout: IDLE_MS_MAX };
    this.#agent = secure ? new https.Agent(idle) : new http.Agent(idle);
    this.#send = secure ? https.request : http.request;
  }

  /** Never rejects, like `answer`. */
  get(path: string, msMax: number): Promise<HttpAnswer> {
    return this.answer({ method: "GET", path, body: null }, msMax);
  }

  answer(call: HttpCall, msMax: number): Promise<HttpAnswer> {
    return new Promise((resolve) => {
      const settle = (answer: HttpAnswer) => {
        cancelTimer();
        resolve(answer);
      };
      const request = this.#open(call, (response) => {
        readAll(response, this.#answerBytesMax, (body, problem) => {
          if (problem !== null) settle({ kind: "unreachable", message: problem });
          else settle({ kind: "answer", status: response.statusCode ?? 0, body });
        });
      });
      const cancelTimer = this.#clock.after(msMax, () => {
        settle({ kind: "unreachable", message: `no answer in ${msMax} ms` });
        request.destroy();
      });
      request.on("error", (error) => {
        const isRefused = "code" in error && error.code === "ECONNREFUSED";
        settle({ kind: "unreachable", message: error.message, isRefused });
      });
    });
  }

  /** Opens a stream. Returns the function that closes it: then the listener is not called any more. */
  stream(call: HttpCall, listener: HttpStreamListener): () => void {
    let isOver = false;
    const end = (tell: () => void) => {
      if (isOver) return;
      isOver = true;
      tell();
    };
    const request = this.#open(call, (response) => {
      if (response.statusCode !== 200) {
        const cancelTimer = this.#clock.after(VLLM_LIMITS.checkMsMax, () => response.destroy());
        const retryAfterS = Number(response.headers["retry-after"] ?? Number.NaN);
        const retryAfterMs = retryAfterS >= 0 ? retryAfterS * 1000 : null;
        readAll(response, this.#answerBytesMax, (body, problem) => {
          cancelTimer();
          if (problem !== null) end(() => listener.ended(problem));
          else end(() => listener.refused(response.statusCode ?? 0, body, retryAfterMs));
        });
        return;
      }
      response.on("data", (bytes: Buffer) => {
        if (!isOver) listener.data(bytes);
      });
      response.on("error", (error) => end(() => listener.ended(error.message)));
      response.on("aborted", () => end(() => listener.ended("the connection broke")));
      response.on("end", () => end(() => listener.ended(null)));
      response.on("close", () => end(() => listener.ended("the connection was closed")));
    });
    request.on("error", (error) => end(() => listener.ended(error.message)));
    return () => {
      isOver = true;
      request.destroy();
    };
  }

  close(): void {
    this.#agent.destroy();
  }

  #open(call: HttpCall, answered: (response: http.IncomingMessage) => void): http.ClientRequest {
    const headers: Record<string, string> = { ...this.#headers, accept: "*/*" };
    const body = call.body === null ? null : Buffer.from(call.body);
    if (body !== null) headers["content-type"] = "application/json";
    if (call.rank !== undefined) headers[RANK_HEADER] = String(call.rank);
    if (call.method === "POST") headers["content-length"] = String(body?.length ?? 0);
    const request = this.#send({
      protocol: this.#base.protocol,
      hostname: this.#base.hostname.replace(/^\[|\]$/g, ""),
      port: this.#base.port,
      path: this.#base.pathname.replace(/\/+$/, "") + call.path,
      method: call.method,
      headers,
      agent: this.#agent,
    });
    // An answer that changes the protocol (101) is no response and no error here.
    const unanswered = () =>
      request.emit("error", new Error("the connection was closed unanswered"));
    request.on("close", unanswered);
    request.on("response", (response) => {
      request.off("close", unanswered);
      answered(response);
    });
    request.setNoDelay(true);
    request.end(body ?? undefined);
    return request;
  }
}

type Server = { readonly url: string; readonly token: string | null };

/** Sends one GET without keeping a connection. Never rejects, like `answer`. @throws AppError invalid_config. */
export function getOnce(server: Server, path: string, msMax: number): Promise<HttpAnswer> {
  const { url, token: apiKey } = server;
  const client = new HttpClient({ ...VLLM_LIMITS, url, apiKey, clock: wallTimers });
  return client.get(path, msMax).finally(() => client.close());
}

function parsedUrl(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (url === null || (url.protocol !== "http:" && url.protocol !== "https:")) {
    throw new AppError("invalid_config", `"${text}" is not the URL of a server (http://host:port)`);
  }
  return url;
}

/** Collects a body; `problem` null: it is complete. */
function readAll(
  response: http.IncomingMessage,
  bytesMax: number,
  done: (body: string, problem: string | null) => void,
): void {
  const parts: Buffer[] = [];
  let bytes = 0;
  let isOver = false;
  const end = (problem: string | null) => {
    if (isOver) return;
    isOver = true;
    done(Buffer.concat(parts).toString("utf8"), problem);
  };
  response.on("data", (part: Buffer) => {
    bytes += part.length;
    if (bytes > bytesMax) {
      end(`the answer is larger than ${bytesMax} bytes`);
      response.destroy();
    } else parts.push(part);
  });
  response.on("end", () => end(null));
  response.on("error", (error) => end(error.message));
  response.on("close", () => end("the connection was closed"));
}

const MESSAGE_CHARACTERS = 200;

/** The JSON object of a successful answer; null: there is none. */
export function jsonIn(answer: HttpAnswer): Readonly<Record<string, unknown>> | null {
  if (answer.kind !== "answer" || answer.status !== 200) return null;
  try {
    const json: unknown = parseJson(answer.body);
    return Object(json) === json ? (json as Readonly<Record<string, unknown>>) : null;
  } catch {
    return null;
  }
}

/** Describes an unexpected answer. */
export function problemIn(answer: HttpAnswer): string {
  if (answer.kind === "unreachable") return answer.message;
  if (answer.status === 200) return "the answer is not what was expected";
  return `HTTP ${answer.status} ${errorMessage(answer.body).slice(0, MESSAGE_CHARACTERS)}`;
}

/** What is wrong with an answer's status; null: it is 200. */
export function statusProblem(answer: HttpAnswer): string | null {
  if (answer.kind === "unreachable") return answer.message;
  return answer.status === 200 ? null : `HTTP ${answer.status}`;
}
