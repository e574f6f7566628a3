// The two ends of a tokenizer's thread: what opens one on a module, and what such a module calls with its text.

import { AppError, InvalidFieldError } from "../core/base/errors.ts";
import type { EncoderThread } from "./encoder.ts";
import { ENCODERS, type EncoderAnswer, type EncoderJob } from "./encoder-job.ts";
import type { Text } from "./text.ts";

declare const self: Worker;

/** Runs `module` in a thread; `opening` is the first message that it gets. */
export function openEncoderThread(module: URL, opening: unknown): EncoderThread {
  const thread = new Worker(module.href);
  let isStopped = false;
  thread.postMessage(opening);
  // A thread that waits keeps no process alive.
  thread.unref();
  return {
    post: (job) => thread.postMessage(job),
    listen: (answered, died) => {
      thread.onmessage = ({ data }: MessageEvent<EncoderAnswer>) => {
        if (!isStopped) answered(data);
      };
      thread.onerror = ({ message }) => {
        if (!isStopped) died(message);
      };
    },
    stop: () => {
      isStopped = true;
      // Native code runs to its end first; nothing waits for that.
      thread.terminate();
    },
  };
}

/** In the thread: `open` makes the text of the opening message. */
export function serveEncoder<O>(open: (opening: O) => Text): void {
  let text: Text | null = null;
  let failure: unknown = null;
  self.onmessage = ({ data }: MessageEvent<unknown>) => {
    if (text === null && failure === null) {
      try {
        text = open(data as O);
      } catch (error) {
        failure = error;
      }
      return;
    }
    self.postMessage(text === null ? failed(failure) : answerOf(text, data as EncoderJob));
  };
}

function answerOf(text: Text, job: EncoderJob): EncoderAnswer {
  try {
    return { kind: "done", value: ENCODERS[job.kind](text, job as never) };
  } catch (error) {
    return failed(error);
  }
}

function failed(error: unknown): EncoderAnswer {
  const message = error instanceof Error ? error.message : String(error);
  const code = error instanceof AppError ? error.code : null;
  if (!(error instanceof InvalidFieldError)) return { kind: "failed", code, message, field: null };
  const { where, field, problem } = error;
  return { kind: "failed", code, message, field: { where, field, problem } };
}
