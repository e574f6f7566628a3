// Engines that keep what they are given: behind the connections of a ControlFixture, each carries out control requests
// one after the other, as a vLLM server or an embedded engine does, and fails where a test wants it to.

import { weightsId } from "../../src/core/base/ids.ts";
import type { ControlAnswer, ControlRequest } from "../../src/core/rollout/worker.ts";
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
    const handled = (request: ControlRequest | null) => {
      const answer = this.#tail.then(() => this.#handle(request));
      this.#tail = answer.then(({ done }) => done);
      return answer.then(async ({ answered }) => {
        if (names) worker.weights = weightsId(this.base);
        return await answered;
      });
    };
    worker.control = handled;
    worker.canary = () => handled(null);
  }

  /** `request` null: a canary. */
  async #handle(
    request: ControlRequest | null,
  ): Promise<{ done: null; answered: Promise<ControlAnswer> }> {
    const { gate } = this;
    this.gate = null;
    if (gate !== null) await gate;
    return { done: null, answered: this.#answer(request) };
  }

  #answer(request: ControlRequest | null): Promise<ControlAnswer> {
    if (request === null) {
      return Promise.resolve(this.#generates ? OK : { status: 500, body: { error: "NaN" } });
    }
    const fault = this.faults.shift();
    switch (fault) {
      case "refused":
        return Promise.resolve({ status: 400, body: { error: "not mine" } });
      case "halfway":
        if (this.#apply(request)) this.base = `${this.base}~`;
        return Promise.resolve({ status: 500, body: { error: "CUDA error" } });
      case "unreachable":
        return Promise.resolve({ status: 502, body: { error: "gone" } });
      case "silent":
        return new Promise(() => {});
      case "silent_done":
        this.#apply(request);
        return new Promise(() => {});
      case "no_canary":
        if (this.#apply(request)) this.#generates = false;
        return Promise.resolve(OK);
      default:
        this.#apply(request);
        return Promise.resolve(OK);
    }
  }

  /** false: the weights are as they were. */
  #apply({ path, body }: ControlRequest): boolean {
    const { serial, kwargs, lora_name: name, lora_path: from } = Object(body);
    switch (path) {
      case "/start_weight_update":
        this.#isFresh = true;
        return false;
      case "/finish_weight_update":
        this.#isFresh = false;
        return false;
      case "/update_weights":
        this.base = this.#isPart() && !this.#isFresh ? `${this.base}+${serial}` : `${serial}`;
        this.#isFresh = false;
        this.#generates = true;
        return true;
      case "/collective_rpc":
        this.base = String(Object(kwargs).weights_path ?? Object(kwargs).serial);
        this.#generates = true;
        return true;
      case "/v1/load_lora_adapter":
        this.adapters.set(String(name), String(from));
        return false;
      case "/v1/unload_lora_adapter":
        this.adapters.delete(String(name));
        return false;
      default:
        return false;
    }
  }
}
