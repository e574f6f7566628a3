// The simulated worker by the contract of workers.

import { newSimulated } from "../../suite/simulated-runs.ts";
import { workerSuite } from "../../suite/worker-suite.ts";

workerSuite("simulated", async () => {
  const worker = newSimulated(0, 1000);
  return {
    worker,
    step: () => worker.step(),
    fail: () => worker.kill(),
    close: () => worker.close(),
  };
});
