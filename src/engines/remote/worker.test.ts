// A linked worker by the contract of workers.

import { setDefaultTimeout } from "bun:test";
import type { SimulatedWorker } from "../../../test/faults/simulated/worker.ts";
import { forwardingSuite, newSimulated } from "../../../test/suite/forwarding-suite.ts";
import { listen, open, settled } from "../../../test/suite/link-fixture.ts";
import { workerSuite } from "../../../test/suite/worker-suite.ts";

// The machine may be busy.
setDefaultTimeout(180_000);

async function linked(simulated: SimulatedWorker) {
  const host = await listen(simulated);
  const worker = await open(host.url);
  return {
    worker,
    settled: () => settled(worker),
    close: async () => {
      await worker.close();
      await host.close();
    },
  };
}

forwardingSuite("linked", linked);

workerSuite("linked", async () => {
  const simulated = newSimulated(0, 1000);
  const step = () => {
    if (!simulated.isIdle) simulated.step();
  };
  return { ...(await linked(simulated)), step, fail: () => simulated.kill() };
});
