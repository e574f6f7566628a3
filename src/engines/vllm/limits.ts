// Every wait, retry and buffer of a vLLM worker, in one place, with the reasons for the defaults.

export interface VllmLimits {
  /** The start: until /health answers 200, ms. A server that loads a large model takes minutes. 0: it is asked once. */
  readonly healthMsMax: number;
  /** Time until the server's first token at the start, ms. */
  readonly startMsMax: number;
  /** A probe, a health check or a poll of the metrics, ms. A server whose engine holds its cores starves for seconds. */
  readonly checkMsMax: number;
  /** The first tokens under new weights, ms: a server may compile or profile again before it generates them. */
  readonly canaryMsMax: number;
  /** A stream silent for this long has the server's health checked, ms. Preempted and queued requests are silent. */
  readonly stallMs: number;
  /** A stream silent for this long on a healthy server is closed and asked for again, ms. */
  readonly silenceMsMax: number;
  /** Health checks that fail one after the other before the worker gives up. */
  readonly healthFailuresMax: number;
  /** Attempts at a chunk, one after the other, that bring no token. */
  readonly failedAttemptsMax: number;
  /** Time of refused connections after which a server has ended, ms. */
  readonly goneMsMax: number;
  /** Pause before the second attempt, ms; doubles with each failed one. */
  readonly retryMs: number;
  readonly retryMsMax: number;
  /** Interval of polling metrics, ms. */
  readonly pollMs: number;
  /** Streams open at the same time; more wait here. */
  readonly streamsMax: number;
  /** Tokens of one server event, at most (retry.ts). */
  readonly streamIntervalMax: number;
  /** One line of a stream, bytes. A completion's first event repeats the prompt. */
  readonly lineBytesMax: number;
  /** The same, and an answer in one piece, of a request that wants logprobs of its prompt or its experts. */
  readonly reportBytesMax: number;
  /** Any other answer, bytes. */
  readonly answerBytesMax: number;
}

/** With these, a server that has ended is given up after 1 to 2 s, one that accepts and breaks connections after about 7 s, a hung one after about 2 min. */
export const VLLM_LIMITS: VllmLimits = {
  healthMsMax: 600_000,
  startMsMax: 600_000,
  checkMsMax: 30_000,
  canaryMsMax: 120_000,
  stallMs: 10_000,
  silenceMsMax: 600_000,
  healthFailuresMax: 3,
  failedAttemptsMax: 7,
  goneMsMax: 1_000,
  retryMs: 100,
  retryMsMax: 10_000,
  pollMs: 1_000,
  streamsMax: 16_384,
  streamIntervalMax: 32,
  lineBytesMax: 16 * 1024 * 1024,
  reportBytesMax: 512 * 1024 * 1024,
  answerBytesMax: 16 * 1024 * 1024,
};
