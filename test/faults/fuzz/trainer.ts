// A trainer with a model of the sidecar: it makes control calls in any order while requests and rollouts run, knows what
// each call answers and whether generation is paused, and at last brings the sidecar back to where it generates. What it
// knows ends with the first fault of an engine: from then on an answer may also say that nothing can serve.

import { present } from "../../../src/core/base/assert.ts";
import { checkGenerated, checkRollout } from "./generated.ts";
import type { TrainerBed } from "./trainer-bed.ts";

const MODES = ["abort", "wait", "keep"] as const;
type Mode = (typeof MODES)[number];

/** Kinds of steps; `choice` decides their parameters. Steps that matter in most states occur several times. */
export const STEP_KINDS = [
  ...["generate", "generate", "stream", "rollout", "rollout", "cancel", "abort_requests"],
  ...["pause", "pause", "pause", "resume", "resume", "sleep", "wake_up", "reset_prefix_cache"],
  ...["start", "start", "start", "part", "finish", "finish", "whole", "whole", "abort"],
  ...["join", "leave", "rename", "let_run"],
] as const;
export const FAULT_KINDS = ["kill", "fail_control"] as const;

export interface Step {
  readonly kind: string;
  readonly choice: number;
}

interface Pending {
  readonly answered: Promise<void>;
  readonly what: string;
}

/** Statuses of a sidecar with faults, which it knows or is about to notice. */
const UNSERVED = [500, 502, 503, 504];
const TRIES_MAX = 400;
const TRY_MS = 50;
const TURNS_MAX = 6;
const JOINING = ["http://three:1", "http://four:1"];

export class Trainer {
  readonly #bed: TrainerBed;
  /** Begins the names of its rollouts: the bed's earlier trainers had others. */
  readonly #name = crypto.randomUUID();
  /** The trainer's own pause. */
  #pause: Mode | null = null;
  #isOpen = false;
  /** A part of the open update was sent. */
  #hasPart = false;
  /** An engine had a fault, or was left with a part of an update. */
  #isHurt = false;
  /** Calls that end requests before they are complete. */
  #aborts = 0;
  #made = 0;
  readonly #pending: Pending[] = [];

  constructor(bed: TrainerBed) {
    this.#bed = bed;
  }

  get #isPaused(): boolean {
    return this.#isOpen || this.#pause !== null;
  }

  /** @throws where the sidecar did something else than expected. */
  async take(steps: readonly Step[]): Promise<void> {
    for (const step of steps) {
      await this.#step(step);
      this.#bed.check();
      if (!this.#isHurt) await this.#checkPause(step);
    }
    await this.#recover();
    for (const { answered } of this.#pending) await answered;
    await this.#checkPause({ kind: "recover", choice: 0 });
    this.#bed.check();
  }

  async #step({ kind, choice }: Step): Promise<void> {
    const mode = MODES[choice % MODES.length] ?? "keep";
    switch (kind) {
      case "generate":
      case "stream":
        return this.#generate(choice, kind === "stream");
      case "rollout":
        return this.#rollout(choice);
      case "cancel":
        this.#aborts += 1;
        return await this.#expect(
          "DELETE",
          `/v1/rollouts/${this.#name}-${choice % 3}`,
          null,
          [200, 404, 409],
        );
      case "abort_requests":
        this.#aborts += 1;
        return await this.#expect("POST", "/abort_requests", {}, [200]);
      case "pause":
      case "sleep":
        return await this.#stop(`/${kind}?mode=${mode}`, mode);
      case "resume":
      case "wake_up":
        await this.#expect("POST", `/${kind}`, null, [200]);
        this.#pause = null;
        return;
      case "reset_prefix_cache":
        return await this.#expect("POST", "/reset_prefix_cache", null, [200]);
      case "rename":
        return await this.#expect("POST", "/update_weight_version", { new_version: "" }, [400]);
      case "join":
        return await this.#expect("POST", "/workers", { url: joining(choice) }, [200, 202]);
      case "leave":
        return await this.#leave(joining(choice), [202, 404]);
      case "let_run":
        return await this.#bed.turns(choice % TURNS_MAX);
      case "kill":
        this.#isHurt = true;
        return this.#bed.kill(choice);
      case "fail_control":
        this.#isHurt = true;
        return this.#bed.failControl(choice);
      default:
        return await this.#update(kind);
    }
  }

  async #stop(path: string, mode: Mode): Promise<void> {
    // What waits for requests to end waits for engines that are being opened again, and a fault may end an update.
    if (this.#isHurt && mode === "wait") return;
    if (mode === "wait" && this.#isOpen) return await this.#expect("POST", path, null, [409]);
    if (mode === "abort") this.#aborts += 1;
    await this.#expect("POST", path, null, [200]);
    this.#pause = mode;
  }

  async #update(kind: string): Promise<void> {
    const { epoch } = this.#bed;
    let advanced = 0;
    switch (kind) {
      case "start":
        await this.#expect("POST", "/start_weight_update", {}, [200]);
        this.#isOpen = true;
        break;
      case "part":
        await this.#expect("POST", "/update_weights", { update_info: {} }, [200]);
        advanced = this.#isOpen ? 0 : 1;
        this.#hasPart = this.#isOpen;
        break;
      case "finish":
        await this.#expect("POST", "/finish_weight_update", {}, [200]);
        advanced = this.#hasPart ? 1 : 0;
        this.#close();
        break;
      case "whole":
        await this.#expect("POST", "/update_weights_from_disk", { model_path: "/nowhere" }, [200]);
        advanced = 1;
        this.#close();
        break;
      default:
        await this.#expect("POST", "/abort_weight_update", null, [this.#isOpen ? 200 : 409]);
        // Engines with a part of other weights are opened again.
        this.#isHurt ||= this.#hasPart;
        this.#close();
    }
    const now = this.#bed.epoch;
    if (!this.#isHurt && now !== epoch + advanced) {
      throw new Error(`${kind}: the epoch is ${now}, not ${epoch + advanced}`);
    }
  }

  #close(): void {
    this.#isOpen = false;
    this.#hasPart = false;
  }

  #generate(choice: number, isStream: boolean): void {
    const tokens = 1 + (choice % 50);
    const n = 1 + (choice % 3);
    const body = {
      token_ids: [1 + (choice % 7), 5],
      stream: isStream,
      sampling_params: { max_tokens: tokens, n, ignore_eos: true },
    };
    this.#await("/inference/v1/generate", body, (text, mayEnd) => {
      if (!isStream) checkGenerated(JSON.parse(text), { tokens, n, mayEnd });
      else if (!text.endsWith("data: [DONE]\n\n") && !this.#isHurt) {
        throw new Error(`the stream ends with ${text.slice(-200)}`);
      }
    });
  }

  #rollout(choice: number): void {
    const tokens = 1 + (choice % 40);
    const isStrict = choice % 2 === 0;
    this.#made += 1;
    const body = {
      id: `${this.#name}-${choice % 3}`,
      groups: [
        { id: "a", token_ids: [1, 2], n: 2 },
        { id: "b", token_ids: [3, this.#made], n: 1 },
      ],
      sampling_params: { max_tokens: tokens, ignore_eos: true },
      on_policy: isStrict ? "strict" : "mixed",
    };
    this.#await("/v1/rollouts", body, (text, isCut) => {
      const mayEnd = isCut || this.#isHurt;
      checkRollout(text, { tokens, isStrict, mayEnd, responses: 3 });
    });
  }

  /** `mayEnd`: requests have been aborted meanwhile. */
  #await(path: string, body: object, check: (text: string, mayEnd: boolean) => void): void {
    const aborts = this.#aborts;
    const answered = this.#bed.call("POST", path, body).then(async (answer) => {
      const [{ status }, text] = [answer, await answer.text()];
      // Another rollout has this name.
      if (status === 409 && "id" in body) return;
      if (this.#isHurt && (UNSERVED.includes(status) || text.includes('"error"'))) return;
      if (status !== 200) throw new Error(`${path}: ${status}: ${text}`);
      check(text, this.#aborts > aborts);
    });
    // It is awaited at the end.
    answered.catch(() => {});
    this.#pending.push({ answered, what: path });
  }

  async #expect(
    method: string,
    path: string,
    body: unknown,
    statuses: readonly number[],
  ): Promise<void> {
    const { status, text } = await this.#bed.answer(method, path, body);
    const allowed = this.#isHurt ? [...statuses, ...UNSERVED, 409] : statuses;
    if (allowed.includes(status)) return;
    throw new Error(`${method} ${path}: ${status}, not one of ${allowed.join(", ")}: ${text}`);
  }

  async #leave(url: string, statuses: readonly number[]): Promise<void> {
    await this.#expect("DELETE", `/workers/${encodeURIComponent(url)}`, null, statuses);
  }

  /** While it is paused nothing is generated; the sidecar and its model agree that it is. */
  async #checkPause({ kind }: Step): Promise<void> {
    const { text } = await this.#bed.answer("GET", "/is_paused", null);
    const { is_paused: isPaused } = JSON.parse(text) as { is_paused: boolean };
    if (isPaused !== this.#isPaused) throw new Error(`after ${kind}: ${text}`);
    if (!isPaused) return;
    const before = this.#bed.outputTokens;
    await this.#bed.turns(3);
    const made = this.#bed.outputTokens - before;
    if (made > 0) throw new Error(`after ${kind}: ${made} tokens during a pause`);
  }

  /** Calls that restore generation from any state. */
  async #recover(): Promise<void> {
    if (this.#isOpen && !this.#isHurt) await this.#update("finish");
    await this.#step({ kind: "wake_up", choice: 0 });
    for (const url of JOINING) await this.#leave(url, [202, 404]);
    for (let tries = 1; ; tries += 1) {
      // Engines with a part of an update are fenced, and requests wait, until the trainer gives whole weights.
      const restoring = ["/abort_weight_update", "/update_weights_from_disk", "/wake_up"];
      for (const path of this.#isHurt ? restoring : []) {
        await this.#bed.answer("POST", path, { model_path: "/nowhere" });
      }
      if (await this.#generates()) break;
      if (!this.#isHurt || tries > TRIES_MAX) {
        const { text } = await this.#bed.answer("GET", "/foretoken/workers", null);
        throw new Error(`it does not generate after ${tries} tries: ${text}`);
      }
      await Bun.sleep(TRY_MS);
    }
    this.#close();
    this.#pause = null;
  }

  async #generates(): Promise<boolean> {
    const { text } = await this.#bed.answer("GET", "/is_paused", null);
    // A request that comes during a pause waits for its end.
    if ((JSON.parse(text) as { is_paused: boolean }).is_paused) return false;
    const sampling = { max_tokens: 2, ignore_eos: true };
    const body = { token_ids: [9], sampling_params: sampling };
    const { status, text: made } = await this.#bed.answer("POST", "/inference/v1/generate", body);
    if (status !== 200) return false;
    checkGenerated(JSON.parse(made), { tokens: 2, n: 1, mayEnd: false });
    return true;
  }
}

function joining(choice: number): string {
  return present(JOINING[choice % JOINING.length], "there are workers to join");
}
