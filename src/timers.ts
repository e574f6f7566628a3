// The process's timers, for whoever serves many.

/** Timers that serve many clients: what one call throws is told, and the next one comes all the same. */
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
