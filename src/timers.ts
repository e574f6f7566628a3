// The process's timers, for code that serves many clients.

/** Timers that serve many clients: an error of one call is reported, and the next call still runs. */
export function timersOf(failed: (error: unknown) => void) {
  const contained = (act: () => void) => () => {
    try {
      act();
    } catch (error) {
      failed(error);
    }
  };
  return {
    afterwards(act: () => void, ms: number): () => void {
      const timer = setTimeout(contained(act), ms);
      return () => clearTimeout(timer);
    },
    repeatedly(act: () => void, ms: number): () => void {
      const timer = setInterval(contained(act), ms);
      return () => clearInterval(timer);
    },
  };
}
