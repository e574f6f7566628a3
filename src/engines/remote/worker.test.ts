// A linked worker by the contract of workers.

import { setDefaultTimeout } from "bun:test";
import { listen, open, settled } from "../../../test/suite/link-fixture.ts";
import { workerSuite } from "../../../test/suite/worker-suite.ts";

// The machine may be busy.
setDefaultTimeout(30_000);

workerSuite("linked", async (simulated) => {
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
});
