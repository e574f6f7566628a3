// Preloaded into a process under test: SIGUSR2 ends all of its threads, as a fault in an engine's native code would.

const threads = new Set<Worker>();

globalThis.Worker = class extends Worker {
  constructor(url: string | URL, options?: WorkerOptions) {
    super(url, options);
    threads.add(this);
  }
};

process.on("SIGUSR2", () => {
  for (const thread of threads) thread.terminate();
  threads.clear();
});
