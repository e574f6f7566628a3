// Every wait, retry and buffer of a vLLM worker, in one place, with the reasons for the defaults.

/** With these, a server that has ended is given up after 1 to 2 s, one that accepts and breaks connections after about 7 s, a hung one after about 2 min. */
export const VLLM_LIMITS = {
  /** Time until the server's first token at the start, ms. */
  startMsMax: 600_000,
  /** A probe, a health check or a poll of the metrics, ms. A server whose engine holds its cores starves for seconds. */
  checkMsMax: 30_000,
  /** The first tokens under new weights, ms: a server may compile or profile again before it generates them. */
  canaryMsMax: 120_000,
  /** A stream silent for this long has the server's health checked, ms. Preempted and queued requests are silent. */
  stallMs: 10_000,
  /** A stream silent for this long on a healthy server is closed and asked for again, ms; a full server is waited for as long. */
  silenceMsMax: 600_000,
  /** Health checks that fail one after the other before the worker gives up. */
  healthFailuresMax: 3,
  /** Attempts at a chunk, one after the other, that bring no token. */
  failedAttemptsMax: 7,
  /** Time of refused connections after which a server has ended, ms. */
  goneMsMax: 1_000,
  /** Pause before the second attempt, ms; doubles with each failed one. */
  retryMs: 100,
  retryMsMax: 10_000,
  /** Interval of polling metrics, ms. */
  pollMs: 1_000,
  /** Tokens of one server event, at most (chunk-request.ts). */
  streamIntervalMax: 32,
  /** One line of a stream, bytes. A completion's first event repeats the prompt. */
  lineBytesMax: 16 * 1024 * 1024,
  /** The same, and an answer in one piece, of a request that wants logprobs of its prompt or its experts. */
  reportBytesMax: 512 * 1024 * 1024,
  /** Any other answer, bytes. */
  answerBytesMax: 16 * 1024 * 1024,
};

export type VllmLimits = Readonly<typeof VLLM_LIMITS>;
