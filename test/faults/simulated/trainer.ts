// A trainer of a simulated sidecar: iterations of rollouts, requests or conversations, and weight updates in each of the
// ways that trainers have. It checks whatever it is answered, and after a fault it does what trainers do: it asks again.

import { canaryOf, tellingToken } from "./engine-server.ts";
import type { IterationPlan, SidecarPlan } from "./plan.ts";
import type { VirtualTime } from "./virtual-time.ts";

export class Wrong extends Error {}
/** The sidecar died before it had answered. */
export class Lost extends Error {}

/** Time for an engine to answer, and between calls of an open update. */
export const WEIGHTS_MS_MAX = 5_000;
const AGAIN_MS = 200;
/** Responses that have not come by then may wait for weights that only the trainer has. */
const IMPATIENT_MS = 5_000;
const READY_MS = 30_000;
const PARTS = 2;
const TURNS = 3;
const CUT_TOKENS = 2;
/** End a response where a plan says so: one in 75 of the tokens that engines draw. */
const STOPS = Array.from({ length: 12 }, (_, i) => 30 + 70 * i);

interface Answer {
  readonly status: number;
  readonly text: string;
}

/** The simulated sidecar, as far as its trainer knows it. */
export interface TrainedSidecar {
  readonly plan: SidecarPlan;
  readonly time: VirtualTime;
  readonly isFaulty: boolean;
  /** Output tokens that it has taken in. */
  readonly made: number;
  /** @throws Lost. `piece`: called with what has come of the answer. */
  call(
    request: { method: string; path: string; body: unknown },
    piece?: (text: string) => void,
  ): Promise<Answer>;
  /** @throws Wrong. */
  drain(): Promise<void>;
}

interface Wanted {
  readonly prompt: readonly number[];
  readonly tokens: number;
  readonly stops: boolean;
  readonly isStrict: boolean;
  /** The current weights when it was sent: none of its tokens is of earlier ones. */
  readonly since: number;
  readonly aborts: number;
}

interface Made {
  readonly token_ids: readonly number[];
  readonly finish_reason: string;
}

interface Span {
  readonly from: number;
  readonly to: number;
  readonly version: string;
}

function samplingOf({ tokens, stops, isWhole }: IterationPlan): object {
  return {
    ...{ max_tokens: tokens, ignore_eos: true, stop_token_ids: stops ? STOPS : [] },
    presence_penalty: isWhole ? 0.5 : 0,
  };
}

export class SimulatedTrainer {
  /** Calls that are not answered. */
  readonly open = new Set<{ readonly what: string; readonly sinceMs: number }>();
  /** Why nothing may be generated now, and the tokens that were there when it began; null: it may. */
  quiet: { readonly made: number; readonly during: string } | null = null;
  readonly #world: TrainedSidecar;
  /** Number of the weights in service, and of the newest. */
  #current = 0;
  #newest = 0;
  /** Calls that end responses before they are complete. */
  #aborts = 0;
  #ids = 0;
  /** Prompt, plan, responses and id of a request that was answered before an update; null: of none. */
  #last: readonly [number[], IterationPlan, number, string] | null = null;

  constructor(world: TrainedSidecar) {
    this.#world = world;
  }

  /** A sidecar that begins anew knows of no pause. */
  sidecarLost(): void {
    this.quiet = null;
  }

  /** @throws Wrong. */
  async train(): Promise<void> {
    while ((await this.#ask("GET", "/health")).status !== 200)
      await this.#world.time.sleep(AGAIN_MS);
    for (const [i, plan] of this.#world.plan.iterations.entries()) {
      const work = this.#again().then(() => this.#work(i, plan));
      work.catch(() => {});
      if (plan.abortMs !== null) void this.#abortLater(i, plan.abortMs);
      const moved = this.#comeAndGo(plan.leaving);
      if (plan.updateMs !== null) {
        await this.#world.time.sleep(plan.updateMs);
        await this.#update(plan);
      }
      await this.#patiently(work);
      await moved;
      if (plan.updateMs === null) await this.#update(plan);
    }
    await this.#allReady();
    await this.#during("drain", () => this.#world.drain());
  }

  /** While responses do not come the trainer gives whole weights: engines that lost theirs wait for it. */
  async #patiently(work: Promise<void>): Promise<void> {
    let isOver = false;
    const over = work.finally(() => {
      isOver = true;
    });
    over.catch(() => {});
    while (!isOver) {
      await Promise.race([over, this.#world.time.sleep(IMPATIENT_MS)]);
      if (isOver || !this.#world.isFaulty) continue;
      if ((await this.#states()).includes("fenced")) await this.#fromDisk(this.#newest);
    }
    await over;
  }

  async #work(i: number, plan: IterationPlan): Promise<void> {
    const groups = Array.from({ length: plan.groups }, (_, g) => [1 + i, 2 + g, 3]);
    if (plan.work === "rollout") return await this.#rollout(i, groups, plan);
    const each = plan.work === "requests" ? this.#request(plan) : this.#conversation(plan);
    await Promise.all(groups.map(each));
  }

  async #rollout(i: number, prompts: number[][], plan: IterationPlan): Promise<void> {
    const wanted = prompts.map((prompt) => this.#wanted(prompt, plan));
    const body = {
      groups: prompts.map((token_ids, g) => ({ id: `${g}`, token_ids })),
      ...{ n: plan.size, detached: i % 2 === 0, on_policy: plan.isStrict ? "strict" : "mixed" },
      sampling_params: samplingOf(plan),
    };
    const known = new Map<string, string>();
    const check = (text: string) => {
      const lines = text.split("\n").slice(0, -1);
      for (const line of lines.filter((one) => one.startsWith('{"group"'))) {
        const made = JSON.parse(line);
        const key = `${made.group} ${made.index}`;
        const before = known.get(key);
        if (before !== undefined && before !== line)
          throw new Wrong(`${key} came twice:\n${before}\n${line}`);
        if (before !== undefined) continue;
        known.set(key, line);
        const spans = made.chunks.map(
          (chunk: { offset: number; tokens: number } & Span & { weight_version: string }) => ({
            from: chunk.offset,
            to: chunk.offset + chunk.tokens,
            version: chunk.weight_version,
          }),
        );
        this.#check(made, spans, wanted[Number(made.group)]);
      }
    };
    for (let id = `it${i}`; ; await this.#world.time.sleep(AGAIN_MS)) {
      let problem: unknown = null;
      const piece = (text: string) => {
        try {
          check(text);
        } catch (error) {
          problem ??= error;
        }
      };
      const { status, text } = await this.#ask("POST", "/v1/rollouts", { id, ...body }, piece);
      if (problem !== null) throw problem;
      const state =
        status === 200 ? JSON.parse(text.trimEnd().split("\n").at(-1) ?? "").state : null;
      const isWhole = known.size === prompts.length * plan.size;
      if (state === "finished" && isWhole) return;
      // Cancelled as a rollout, or failed because the trainer aborted its requests, and for no other reason.
      const isAborted = state === "failed" && text.includes("because they were aborted");
      const isOver = state === "cancelled" || isAborted;
      if (isOver && this.#aborts > (wanted[0]?.aborts ?? 0)) return;
      if (!this.#world.isFaulty) throw new Wrong(`/v1/rollouts: ${status} ${state}: ${text}`);
      // It was given up because of a fault: another one under another name.
      if (state !== null) id = `${id}'`;
      if (state !== null) known.clear();
    }
  }

  #request(plan: IterationPlan): (prompt: number[]) => Promise<void> {
    return async (prompt) => {
      await this.#generated(prompt, plan, { n: plan.size });
    };
  }

  #conversation(plan: IterationPlan): (prompt: number[], g: number) => Promise<void> {
    return async (first, g) => {
      this.#ids += 1;
      const session_id = `s${this.#ids}`;
      let prompt = first;
      for (let turn = 0; turn < TURNS; turn += 1) {
        const [made] = await this.#generated(prompt, plan, { n: 1, session_id });
        // Clients cut the end of an answer off, as a parser does.
        const known = made?.token_ids.slice(0, turn === 0 ? undefined : -CUT_TOKENS) ?? [];
        prompt = [...prompt, ...known, 4 + g, 5];
      }
    };
  }

  /** The last request of the iteration before, again: whatever its answer was, it is of these weights now. */
  async #again(): Promise<void> {
    const last = this.#last;
    this.#last = null;
    if (last === null) return;
    const [prompt, plan, n, id] = last;
    await this.#generated(prompt, plan, { n }, id);
  }

  async #generated(
    token_ids: number[],
    plan: IterationPlan,
    { n, ...own }: { n: number; session_id?: string },
    named: string | null = null,
  ): Promise<readonly Made[]> {
    const wanted = { ...this.#wanted(token_ids, plan), isStrict: false };
    this.#ids += 1;
    const sampling_params = { ...samplingOf(plan), n };
    let id = named ?? `q${this.#ids}`;
    for (; ; await this.#world.time.sleep(AGAIN_MS)) {
      const body = { token_ids, sampling_params, request_id: id, ...own };
      const { status, text } = await this.#ask("POST", "/inference/v1/generate", body);
      if (status === 200) {
        const { choices } = JSON.parse(text);
        if (choices.length !== n) throw new Wrong(`${choices.length} responses, not ${n}`);
        for (const made of choices) {
          const spans = made.weight_versions.map((span: { start: number; end: number } & Span) => ({
            from: span.start,
            to: span.end,
            version: span.version,
          }));
          this.#check(made, spans, wanted);
        }
        const isBefore = plan.updateMs === null && own.session_id === undefined && named === null;
        this.#last = isBefore ? [token_ids, plan, n, id] : null;
        return choices;
      }
      if (!this.#world.isFaulty) throw new Wrong(`generate: ${status}: ${text}`);
      // A sidecar that begins anew goes on with a request that it knows by its id.
      if (status !== 0) id = `${id}'`;
    }
  }

  #wanted(prompt: readonly number[], { tokens, stops, isStrict }: IterationPlan): Wanted {
    return { prompt, tokens, stops, isStrict, since: this.#current, aborts: this.#aborts };
  }

  #check({ token_ids: ids, finish_reason: finish }: Made, spans: Span[], wanted?: Wanted): void {
    if (wanted === undefined) throw new Wrong("a response to nothing");
    const { prompt, tokens, stops, isStrict, since, aborts } = wanted;
    const end = stops ? ids.findIndex((id) => STOPS.includes(id)) : -1;
    const isStopped = finish === "stop" && end >= 0 && end === ids.length - 1;
    const isWhole = isStopped || (finish === "length" && ids.length === tokens && end < 0);
    const mayEnd = finish === "abort" && (this.#aborts > aborts || this.#world.isFaulty);
    if (!isWhole && !(mayEnd && ids.length <= tokens)) {
      throw new Wrong(`${ids.length} of ${tokens} tokens, ended by ${finish}`);
    }
    const versions = new Set<string>();
    for (const [at, id] of ids.entries()) {
      const version = spans.findLast(({ from, to }) => from <= at && at < to)?.version ?? "none";
      versions.add(version);
      const weights = Number(version.replace("v", ""));
      if (weights < since) throw new Wrong(`token ${at} is of weights ${version}, not v${since}`);
      const right = tellingToken(prompt, at, weights);
      if (id !== right)
        throw new Wrong(`token ${at} of ${prompt} is ${id}, not ${right} of ${version}`);
    }
    if (isStrict && versions.size > 1) throw new Wrong(`a strict response of ${[...versions]}`);
  }

  /** An engine leaves, and joins again. */
  async #comeAndGo(leaving: IterationPlan["leaving"]): Promise<void> {
    if (leaving === null) return;
    const url = `http://e${leaving.engine}:1`;
    await this.#world.time.sleep(leaving.ms);
    await this.#ask("DELETE", `/workers/${encodeURIComponent(url)}`);
    await this.#world.time.sleep(leaving.ms);
    while ((await this.#ask("POST", "/workers", { url })).status >= 300) await this.#pauseAgain();
  }

  async #abortLater(i: number, ms: number): Promise<void> {
    await this.#world.time.sleep(ms);
    this.#aborts += 1;
    await this.#ask("DELETE", `/v1/rollouts/it${i}`);
    await this.#ask("POST", "/abort_requests", {});
  }

  async #update(plan: IterationPlan): Promise<void> {
    this.#newest += 1;
    const number = this.#newest;
    const { pause } = plan;
    if (pause === "abort") this.#aborts += 1;
    if (pause !== null) await this.#good("POST", `/pause?mode=${pause}`);
    if (pause !== null) this.#beQuiet("during a pause");
    const isDone = await this.#tryUpdate(plan, number);
    if (!isDone) await this.#fromDisk(number);
    this.quiet = null;
    if (pause !== null) while (!(await this.#good("POST", "/resume"))) await this.#pauseAgain();
  }

  async #tryUpdate({ update, pause }: IterationPlan, number: number): Promise<boolean> {
    const { time } = this.#world;
    if (update === "disk") return false;
    if (update === "sleep") {
      if (await this.#good("POST", "/sleep?level=1&mode=keep")) {
        this.#beQuiet("while the engines sleep");
      }
      await time.sleep(AGAIN_MS);
      this.quiet = null;
      while (!(await this.#good("POST", "/wake_up"))) await this.#fromDisk(number);
      return false;
    }
    if (!(await this.#good("POST", "/start_weight_update", {}))) return false;
    this.#beQuiet("while the weights change");
    await this.#expected(number);
    for (let part = 0; part < PARTS; part += 1) {
      // A trainer that does not look at the answer goes on.
      await this.#good("POST", "/update_weights", { weights: number, part, of: PARTS });
      if (update === "aborted") {
        this.quiet = null;
        await this.#good("POST", "/abort_weight_update");
        return false;
      }
      if (pause === null) await this.#meddle();
      if (update !== "dies") continue;
      await time.sleep(WEIGHTS_MS_MAX - AGAIN_MS);
      this.quiet = null;
      await time.sleep(2 * AGAIN_MS);
      const { text } = await this.#ask("GET", "/is_paused");
      const isHeld = pause === null && !this.#world.isFaulty && text.includes('"is_paused":true');
      if (isHeld) throw new Wrong(`an update that was given up holds generation: ${text}`);
      return false;
    }
    this.quiet = null;
    const body = { weight_version: `v${number}` };
    if (!(await this.#good("POST", "/finish_weight_update", body))) return false;
    return await this.#updated(number);
  }

  /** Other clients call what an open update does not allow. */
  async #meddle(): Promise<void> {
    await this.#good("POST", "/resume");
    const adapter = { lora_name: "a", lora_path: "/a" };
    const { status, text } = await this.#ask("POST", "/v1/load_lora_adapter", adapter);
    if (status === 409 || this.#world.isFaulty) return;
    throw new Wrong(`an adapter during an update: ${status}: ${text}`);
  }

  /** Whole weights, until every engine has them. */
  async #fromDisk(number: number): Promise<void> {
    const body = { model_path: `/w/${number}`, weight_version: `v${number}` };
    for (;;) {
      this.quiet = null;
      await this.#expected(number);
      const isGood = await this.#good("POST", "/update_weights_from_disk", body);
      if (isGood && (await this.#updated(number))) return;
      await this.#pauseAgain();
    }
  }

  /** false: the weights are others, as of an update that every engine refused. */
  async #updated(number: number): Promise<boolean> {
    const { text } = await this.#ask("GET", "/weight_info");
    const isThere = text.includes(`"v${number}"`);
    if (!isThere && !this.#world.isFaulty) throw new Wrong(`not v${number} but ${text}`);
    if (isThere) this.#current = Math.max(this.#current, number);
    return isThere;
  }

  async #expected(number: number): Promise<void> {
    if (this.#world.isFaulty) await this.#ask("POST", "/v1/weights/expect", canaryOf(number));
  }

  /** Every engine serves again. */
  async #allReady(): Promise<void> {
    const { time, isFaulty } = this.#world;
    const endMs = time.nowMs + READY_MS;
    for (let isFixed = false; ; await time.sleep(AGAIN_MS)) {
      const states = await this.#states();
      if (states.every((state) => state === "ready")) return;
      if (time.nowMs > endMs) throw new Wrong(`engines do not come back: ${states}`);
      const isFenced = states.includes("fenced");
      if (isFaulty && isFenced && !isFixed) await this.#fromDisk(this.#newest);
      isFixed = isFenced;
    }
  }

  async #states(): Promise<string[]> {
    const { text } = await this.#ask("GET", "/foretoken/workers");
    if (!text.startsWith("{")) return ["lost"];
    return JSON.parse(text).workers.map(({ state }: { state: string }) => state);
  }

  #beQuiet(during: string): void {
    this.quiet ??= { made: this.#world.made, during };
  }

  async #pauseAgain(): Promise<void> {
    await this.#world.time.sleep(AGAIN_MS);
  }

  /** false: it was not answered with 200, because of a fault. @throws Wrong: there was none. */
  async #good(method: string, path: string, body: unknown = null): Promise<boolean> {
    const { status, text } = await this.#ask(method, path, body);
    if (status === 200) return true;
    if (!this.#world.isFaulty) throw new Wrong(`${method} ${path}: ${status}: ${text}`);
    return false;
  }

  async #ask(
    method: string,
    path: string,
    body: unknown = null,
    piece?: (text: string) => void,
  ): Promise<Answer> {
    const call = () => this.#world.call({ method, path, body }, piece);
    try {
      return await this.#during(`${method} ${path}`, call);
    } catch (error) {
      if (error instanceof Lost) return { status: 0, text: "" };
      throw error;
    }
  }

  async #during<T>(what: string, act: () => Promise<T>): Promise<T> {
    const call = { what, sinceMs: this.#world.time.nowMs };
    this.open.add(call);
    try {
      return await act();
    } finally {
      this.open.delete(call);
    }
  }
}
