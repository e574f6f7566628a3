// The process's timers, for code that serves many clients.

import { contain } from "../core/base/contain.ts";

export type Timers = ReturnType<typeof timersOf>;

/** One-shot and periodic timers, which `stop` cancels. An error of one call is reported, and the next call still runs. */
export function timersOf(failed: (error: unknown) => void) {
  const pending = new Set<ReturnType<typeof setTimeout>>();
  let isStopped = false;
  const cancellable = (timer: ReturnType<typeof setTimeout>) => {
    pending.add(timer);
    return () => {
      pending.delete(timer);
      clearTimeout(timer);
    };
  };
  return {
    afterwards(act: () => void, ms: number): () => void {
      if (isStopped) return () => {};
      const timer = setTimeout(() => {
        pending.delete(timer);
        contain(act, failed);
      }, ms);
      return cancellable(timer);
    },
    repeatedly(act: () => void, ms: number): () => void {
      if (isStopped) return () => {};
      return cancellable(setInterval(() => contain(act, failed), ms));
    },
    /** Cancels all timers, so that none keeps the process alive. */
    stop(): void {
      isStopped = true;
      for (const timer of pending) clearTimeout(timer);
      pending.clear();
    },
  };
}
