// The simulated worker by the contract of workers.

import { workerSuite } from "../../suite/worker-suite.ts";

workerSuite("simulated", async (worker) => ({
  worker,
  settled: async () => {},
  close: () => worker.close(),
}));
