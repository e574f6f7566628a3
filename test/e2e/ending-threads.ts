// Preloaded into a process under test: SIGUSR2 ends the oldest thread of an engine, as a fault in its native code would.

const threads = new Set<Worker>();

globalThis.Worker = class extends Worker {
  constructor(url: string | URL, options?: WorkerOptions) {
    super(url, options);
    if (!`${url}`.includes("engine-thread")) return;
    console.error("an engine's thread begins");
    threads.add(this);
    this.addEventListener("close", () => threads.delete(this));
  }
};

process.on("SIGUSR2", () => {
  const [oldest] = threads;
  oldest?.terminate();
});
