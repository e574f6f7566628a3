// The simulated worker by the contract of workers.

import { forwardingSuite, newSimulated } from "../../suite/forwarding-suite.ts";
import { workerSuite } from "../../suite/worker-suite.ts";

forwardingSuite("simulated", async (worker) => ({
  worker,
  settled: async () => {},
  close: () => worker.close(),
}));

workerSuite("simulated", async () => {
  const worker = newSimulated(0, 1000);
  return {
    worker,
    step: () => worker.step(),
    fail: () => worker.kill(),
    close: () => worker.close(),
  };
});
