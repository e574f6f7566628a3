// Workers on stand-ins for vLLM (both endpoints) and SGLang by the contract of workers.

import { setDefaultTimeout } from "bun:test";
import { SglangStandIn } from "../../../test/faults/stand-in/sglang-stand-in.ts";
import { VllmStandIn } from "../../../test/faults/stand-in/vllm-stand-in.ts";
import { workerSuite } from "../../../test/suite/worker-suite.ts";
import { workerId } from "../../core/base/ids.ts";
import { openVllmWorker } from "./open.ts";

setDefaultTimeout(180_000);

const LIMITS = { retryMs: 1, retryMsMax: 2, pollMs: 5, failedAttemptsMax: 5, goneMsMax: 20 };
/** The worker has noticed by then that its server is gone. */
const NOTICED_MS = 200;
const SERVERS = {
  "vLLM /inference/v1/generate": () => VllmStandIn.start(),
  "vLLM /v1/completions": () => VllmStandIn.start({ generate: "disabled" }),
  SGLang: () => SglangStandIn.start(),
};

for (const [name, start] of Object.entries(SERVERS)) {
  workerSuite(name, async () => {
    const server = await start();
    const worker = await openVllmWorker({ workerId: workerId(0), url: server.url, limits: LIMITS });
    return {
      worker,
      fail: async () => {
        await server.stop();
        await Bun.sleep(NOTICED_MS);
      },
      close: async () => {
        await worker.close();
        if (!server.isStopped) await server.stop();
      },
    };
  });
}
