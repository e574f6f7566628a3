// Every wait, retry and buffer of a vLLM worker, in one place, with the reasons for the defaults.

import { waitMsMax } from "../../core/base/waits.ts";

/** A server that has ended is given up after 1 to 2 s, one that breaks connections after about 7 s, a hung one after 2 min. */
export const VLLM_LIMITS = {
  /** Deadline of the server's first token at the start, ms. */
  startMsMax: 600_000,
  /** Deadline of a probe, a health check or a poll, ms. A server whose engine uses all cores may not answer for seconds. */
  checkMsMax: 30_000,
  /** Deadline of the first tokens under new weights, ms: a server may compile or profile before them. */
  canaryMsMax: 120_000,
  /** After this silence of a stream the server's health is checked, ms: it may be queued or preempted. */
  stallMs: 10_000,
  /** After this silence on a healthy server, a stream is closed and requested again, ms. A full server is retried as long. */
  silenceMsMax: waitMsMax("engine"),
  /** Health checks that fail one after the other before the worker gives up. */
  healthFailuresMax: 3,
  /** Attempts in a row at a chunk that bring no token, before the server or the request is given up. */
  failedAttemptsMax: 7,
  /** Time of refused connections after which a server counts as ended, ms. */
  goneMsMax: 1_000,
  /** Pause before the second attempt, ms; it doubles with each failed attempt. */
  retryMs: 100,
  retryMsMax: 10_000,
  /** Least time in which a server can end and serve again, ms. vLLM needs 10 s and more; a pod behind an address, none. */
  restartMsMin: 100,
  /** Interval of polling metrics, ms. */
  pollMs: 1_000,
  /** Tokens of one server event, at most (chunk-request.ts). */
  streamIntervalMax: 32,
  /** Limit of a line of a stream, bytes. A completion's first event repeats the prompt. */
  lineBytesMax: 16 * 1024 * 1024,
  /** The same for a request with a report (logprobs of its prompt, routed experts), and for its answer in one piece. */
  reportBytesMax: 512 * 1024 * 1024,
  /** Limit of any other answer, bytes. */
  answerBytesMax: 16 * 1024 * 1024,
};

export type VllmLimits = Readonly<typeof VLLM_LIMITS>;
