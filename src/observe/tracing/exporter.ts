// Sends spans to a collector: OTLP over HTTP, in JSON. Its queue is bounded; what does not fit, or what the collector
// does not take, is dropped and counted. Nothing waits for it, and it never throws.

import { errorText } from "../../core/base/errors.ts";
import { keyValues, type Span, type Value } from "./span.ts";

export interface ExporterOptions {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  /** For an answer. */
  readonly timeoutMs: number;
  readonly resource: Readonly<Record<string, Value>>;
  /** Names who records the spans. */
  readonly scope: { readonly name: string; readonly version: string };
  /** Runs something after a while; returns what cancels it. */
  readonly later: (act: () => void, ms: number) => () => void;
  /** The collector does not take spans any more, and why; null: it does again. */
  readonly changed: (problem: string | null) => void;
}

/** Counts since the beginning. */
export interface SpanFigures {
  readonly queued: number;
  readonly sent: number;
  readonly dropped: number;
}

/** Some 20 MB. */
export const QUEUE_MAX = 16_384;
const BATCH_MAX = 1024;
const GATHER_MS = 1000;
/** Pauses before the next tries of a batch; then it is dropped. */
const RETRY_MS = [1000, 2000, 4000, 8000];
const RETRY_AFTER_MS_MAX = 30_000;
/** As in the OTLP specification. */
const RETRYABLE = new Set([429, 502, 503, 504]);
const CLOSE_MS = 2000;
const REASON_CHARS = 200;

type Outcome =
  | { readonly kind: "sent"; readonly rejected: number; readonly problem: string | null }
  | { readonly kind: "refused"; readonly problem: string }
  | { readonly kind: "passing"; readonly problem: string; readonly afterMs: number | null };

export class SpanExporter {
  readonly #options: ExporterOptions;
  readonly #head: string;
  #queue: Span[] = [];
  #sent = 0;
  #dropped = 0;
  #tries = 0;
  #retryMs = 0;
  /** Spans on their way. */
  #posted = 0;
  #sending: Promise<void> | null = null;
  #isClosed = false;
  readonly #closing = new AbortController();
  #problem: string | null = null;
  #cancel: (() => void) | null = null;

  constructor(options: ExporterOptions) {
    this.#options = options;
    const resource = JSON.stringify({ attributes: keyValues(options.resource) });
    const scope = JSON.stringify(options.scope);
    this.#head = `{"resourceSpans":[{"resource":${resource},"scopeSpans":[{"scope":${scope},"spans":`;
  }

  get figures(): SpanFigures {
    const queued = this.#queue.length + this.#posted;
    return { queued, sent: this.#sent, dropped: this.#dropped };
  }

  add(span: Span): void {
    if (this.#isClosed || this.#queue.length >= QUEUE_MAX) {
      this.#dropped += 1;
      return;
    }
    this.#queue.push(span);
    if (this.#sending !== null) return;
    if (this.#queue.length === BATCH_MAX && this.#tries === 0) this.#plan(0);
    else if (this.#cancel === null) this.#plan(GATHER_MS);
  }

  /** Tries once to send what is left, for two seconds at most; the rest is dropped. */
  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#cancel?.();
    const cancel = this.#options.later(() => this.#closing.abort(), CLOSE_MS);
    await this.#sending;
    while (this.#queue.length > 0 && !this.#closing.signal.aborted) await this.#send();
    cancel();
    this.#dropped += this.#queue.splice(0).length;
  }

  #plan(ms: number): void {
    this.#cancel?.();
    this.#cancel = this.#options.later(() => {
      this.#cancel = null;
      this.#sending = this.#send().finally(() => {
        this.#sending = null;
        this.#planNext();
      });
    }, ms);
  }

  /** A full batch goes out at once, unless the collector has trouble. */
  #planNext(): void {
    if (this.#isClosed || this.#queue.length === 0) return;
    const isCalm = this.#tries === 0 && this.#problem === null;
    const pauseMs = isCalm && this.#queue.length >= BATCH_MAX ? 0 : GATHER_MS;
    this.#plan(this.#tries === 0 ? pauseMs : this.#retryMs);
  }

  async #send(): Promise<void> {
    const batch = this.#queue.splice(0, BATCH_MAX);
    this.#posted = batch.length;
    const outcome = await this.#post(batch);
    this.#posted = 0;
    const pauseMs = RETRY_MS[this.#tries];
    const isFinal = outcome.kind !== "passing" || pauseMs === undefined || this.#isClosed;
    if (isFinal) this.#tries = 0;
    else {
      this.#tries += 1;
      this.#retryMs = Math.min(RETRY_AFTER_MS_MAX, outcome.afterMs ?? pauseMs);
      this.#queue = [...batch, ...this.#queue];
    }
    this.#settle(batch, outcome, isFinal);
  }

  #settle(batch: readonly Span[], outcome: Outcome, isFinal: boolean): void {
    const rejected = outcome.kind === "sent" ? Math.min(outcome.rejected, batch.length) : 0;
    if (outcome.kind === "sent") {
      this.#sent += batch.length - rejected;
      this.#dropped += rejected;
    } else if (isFinal) this.#dropped += batch.length;
    const { problem } = outcome;
    // One report for each change: a collector that is down for an hour is one line.
    if ((problem === null) === (this.#problem === null)) return;
    this.#problem = problem;
    this.#options.changed(problem);
  }

  async #post(batch: readonly Span[]): Promise<Outcome> {
    const { url, headers, timeoutMs } = this.#options;
    const signal = AbortSignal.any([AbortSignal.timeout(timeoutMs), this.#closing.signal]);
    const body = `${this.#head}${JSON.stringify(batch)}}]}]}`;
    try {
      const answer = await fetch(url, {
        method: "POST",
        headers: { ...headers, "content-type": "application/json" },
        body,
        signal,
      });
      const text = await answer.text();
      if (answer.ok) return acceptance(text);
      const problem = `it answers ${answer.status}: ${text.slice(0, REASON_CHARS)}`;
      if (!RETRYABLE.has(answer.status)) return { kind: "refused", problem };
      const afterS = Number(answer.headers.get("retry-after") ?? Number.NaN);
      return { kind: "passing", problem, afterMs: afterS > 0 ? afterS * 1000 : null };
    } catch (error) {
      return { kind: "passing", problem: errorText(error), afterMs: null };
    }
  }
}

/** A collector may take a batch and refuse some of its spans. */
function acceptance(text: string): Outcome {
  try {
    const { partialSuccess } = JSON.parse(text === "" ? "{}" : text) as {
      partialSuccess?: { rejectedSpans?: string | number; errorMessage?: string };
    };
    const rejected = Number(partialSuccess?.rejectedSpans ?? 0);
    if (!(rejected > 0)) return { kind: "sent", rejected: 0, problem: null };
    const problem = `it refused ${rejected} spans: ${partialSuccess?.errorMessage ?? ""}`;
    return { kind: "sent", rejected, problem };
  } catch {
    return { kind: "sent", rejected: 0, problem: null };
  }
}
