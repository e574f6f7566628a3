// The embedded engine, with the bundled model on libllama, by the contract of workers.

import { afterAll, describe, setDefaultTimeout } from "bun:test";
import { MODEL_PATH, skipReason } from "../../../test/llama/engine-fixture.ts";
import { workerSuite } from "../../../test/suite/worker-suite.ts";
import { weightEpoch, workerId } from "../../core/base/ids.ts";
import { type LlamaModel, openLlamaModel } from "./open.ts";

setDefaultTimeout(180_000);

const CAPACITY = {
  workerId: workerId(0),
  slots: 4,
  kvTokens: 600,
  contextTokens: 256,
  epoch: weightEpoch(0),
};

describe.skipIf(skipReason !== null)("embedded engine", () => {
  let model: LlamaModel | null = null;
  afterAll(() => model?.close());

  workerSuite("embedded", async () => {
    model ??= await openLlamaModel({ path: MODEL_PATH, deterministic: true });
    const worker = await model.openWorker(CAPACITY);
    return { worker, weights: MODEL_PATH, close: () => worker.close() };
  });
});
