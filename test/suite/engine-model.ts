// Engines that keep what they are given: behind the connections of a ControlFixture, each carries out control requests
// one after the other, as a vLLM server or an embedded engine does, and fails where a test wants it to.

import { weightsId } from "../../src/core/base/ids.ts";
import type { ControlAnswer, EngineOperation } from "../../src/core/rollout/operation.ts";
import type { ScriptedWorker } from "./control-fixture.ts";

/**
 * Outcomes of the next request to an engine. halfway: it fails after it has changed something. silent_done: it is
 * carried out, and no answer comes. no_canary: the engine does not generate with the weights that it brings.
 */
export const FAULTS = [
  "refused",
  "halfway",
  "unreachable",
  "silent",
  "silent_done",
  "no_canary",
] as const;
export type Fault = (typeof FAULTS)[number];

export const FIRST_WEIGHTS = "first";

const OK: ControlAnswer = { status: 200, body: {} };

export class ModelEngine {
  base = FIRST_WEIGHTS;
  readonly adapters = new Map<string, string>();
  readonly faults: Fault[] = [];
  /** The next request, or canary, waits for it. */
  gate: Promise<void> | null = null;
  /** An update has been begun on it, and no part has come. */
  #isFresh = false;
  #generates = true;
  /** One request at a time, whoever waits for its answer. */
  #tail: Promise<unknown> = Promise.resolve();
  /** An update is open: a request is a part of it, and not whole weights. */
  readonly #isPart: () => boolean;

  constructor(isPart: () => boolean) {
    this.#isPart = isPart;
  }

  /** The worker is a connection to this engine. `names`: it reports what its weights are called. */
  serve(worker: ScriptedWorker, { names }: { names: boolean }): void {
    if (names) worker.weights = weightsId(this.base);
    worker.perform = (operation: EngineOperation) => {
      const answer = this.#tail.then(() => this.#handle(operation));
      this.#tail = answer.then(({ done }) => done);
      return answer.then(async ({ answered }) => {
        if (names) worker.weights = weightsId(this.base);
        return await answered;
      });
    };
  }

  async #handle(
    operation: EngineOperation,
  ): Promise<{ done: null; answered: Promise<ControlAnswer> }> {
    const { gate } = this;
    this.gate = null;
    if (gate !== null) await gate;
    return { done: null, answered: this.#answer(operation) };
  }

  #answer(operation: EngineOperation): Promise<ControlAnswer> {
    if (operation.kind === "canary") {
      return Promise.resolve(this.#generates ? OK : { status: 500, body: { error: "NaN" } });
    }
    const fault = this.faults.shift();
    const failed = (status: number, error: string) => Promise.resolve({ status, body: { error } });
    if (fault === "refused") return failed(400, "not mine");
    if (fault === "unreachable") return failed(502, "gone");
    if (fault === "silent") return new Promise(() => {});
    const isChanged = this.#apply(operation);
    if (fault === "silent_done") return new Promise(() => {});
    if (fault === "no_canary" && isChanged) this.#generates = false;
    if (fault !== "halfway") return Promise.resolve(OK);
    if (isChanged) this.base = `${this.base}~`;
    return failed(500, "CUDA error");
  }

  /** false: the weights are as they were. */
  #apply(operation: EngineOperation): boolean {
    const body = "body" in operation ? Object(operation.body) : {};
    const { serial, kwargs, lora_name: name, lora_path: from } = body;
    const what = "step" in operation ? operation.step : operation.kind;
    switch (what) {
      case "start":
        this.#isFresh = true;
        return false;
      case "finish":
        this.#isFresh = false;
        return false;
      case "part":
        this.base = this.#isPart() && !this.#isFresh ? `${this.base}+${serial}` : `${serial}`;
        this.#isFresh = false;
        this.#generates = true;
        return true;
      case "load":
      case "rpc":
        this.base = operation.kind === "load" ? operation.path : String(Object(kwargs).serial);
        this.#generates = true;
        return true;
      case "adapter":
        if (operation.kind === "adapter" && operation.change === "unload")
          this.adapters.delete(String(name));
        else this.adapters.set(String(name), String(from));
        return false;
      default:
        return false;
    }
  }
}
