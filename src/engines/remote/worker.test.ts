// A linked worker by the contract of workers.

import { setDefaultTimeout } from "bun:test";
import { listen, open } from "../../../test/suite/link-fixture.ts";
import { newSimulated } from "../../../test/suite/simulated-runs.ts";
import { workerSuite } from "../../../test/suite/worker-suite.ts";

setDefaultTimeout(180_000);

workerSuite("linked", async () => {
  const simulated = newSimulated(0, 1000);
  const host = await listen(simulated);
  const worker = await open(host.url);
  return {
    worker,
    step: () => {
      if (!simulated.isIdle) simulated.step();
    },
    fail: () => simulated.kill(),
    close: async () => {
      await worker.close();
      await host.close();
    },
  };
});
