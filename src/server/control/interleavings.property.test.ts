// Weight updates, adapters, deaths, reopenings, joins, leaves and lost connections in any order and at any time. Each
// engine keeps what it was given, so that at every step it is known whether all that serve have the same.

import { test } from "bun:test";
import fc from "fast-check";
import { rounds } from "../../../test/faults/attacks/scale.ts";
import { kind, weighted } from "../../../test/suite/arbitraries.ts";
import { ControlFixture, type ScriptedWorker } from "../../../test/suite/control-fixture.ts";
import { FAULTS, type Fault, ModelEngine } from "../../../test/suite/engine-model.ts";
import { assert } from "../../core/base/assert.ts";
import { AppError } from "../../core/base/errors.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";
import type { Member } from "../../fleet/engines.ts";

const SEED = Number(process.env.SEED ?? 21);
const RUNS = rounds(15, 20_000);
const ENGINES = 5;
const OUTPUT_TOKENS = 30;

type Call = "start" | "part" | "finish" | "abort" | "pause" | "resume" | "sleep" | "wake";
type OnEngine = "join" | "leave" | "lose" | "regain" | "gate" | "ungate" | "drop" | "restart";
type Op =
  | { readonly kind: "whole"; readonly hasPath: boolean }
  | { readonly kind: "call"; readonly call: Call }
  | { readonly kind: "adapter"; readonly name: string; readonly isLoaded: boolean }
  | { readonly kind: "time"; readonly what: "retry" | "polls" | "deadlines" }
  | { readonly kind: "engine"; readonly engine: number; readonly what: OnEngine }
  | { readonly kind: "fault"; readonly engine: number; readonly fault: Fault }
  | { readonly kind: "ask"; readonly count: number };

const engine = fc.nat({ max: ENGINES - 1 });
const calls: Call[] = ["start", "part", "finish", "abort", "pause", "resume", "sleep", "wake"];
const onEngine: OnEngine[] = [
  ...(["join", "leave", "lose", "regain", "gate", "gate", "ungate", "ungate"] as const),
  ...(["drop", "drop", "restart", "restart"] as const),
];
const more: Call[] = ["start", "part", "part", "part", "finish", "resume"];
const times = fc.constantFrom("retry", "retry", "polls", "deadlines");
const names = fc.constantFrom("a", "b");
const ops = fc.oneof(
  weighted(5, { kind: kind("whole"), hasPath: fc.boolean() }),
  weighted(10, { kind: kind("call"), call: fc.constantFrom<Call[]>(...calls, ...more) }),
  weighted(3, { kind: kind("adapter"), name: names, isLoaded: fc.boolean() }),
  weighted(8, { kind: kind("time"), what: times }),
  weighted(12, { kind: kind("engine"), engine, what: fc.constantFrom<OnEngine[]>(...onEngine) }),
  weighted(5, { kind: kind("fault"), engine, fault: fc.constantFrom(...FAULTS) }),
  weighted(3, { kind: kind("ask"), count: fc.integer({ min: 1, max: 3 }) }),
) as fc.Arbitrary<Op>;
/** `turns`: of the event loop, after it. */
const timed = fc.record({ op: ops, turns: fc.nat({ max: 5 }) });
const happening = fc.array(timed, { maxLength: 3 });
/** An update of one or two parts, between which something happens, and which ends in one way or another. */
const opened = fc
  .tuple(happening, happening, happening, fc.constantFrom<Call[]>("finish", "abort", "part"))
  .map(([first, second, third, end]) => [
    ...[plain("start"), ...first, plain("part"), ...second, plain("part"), ...third, plain(end)],
  ]);
const plans = fc
  .array(fc.oneof({ weight: 3, arbitrary: happening }, { weight: 1, arbitrary: opened }), {
    maxLength: 12,
  })
  .map((parts) => parts.flat());

function plain(call: Call): { op: Op; turns: number } {
  return { op: { kind: "call", call }, turns: 5 };
}

interface Kind {
  /** The engines are servers, which keep their weights over a lost connection. */
  readonly keepsWeights: boolean;
  /** The engines report a digest of their weights. */
  readonly names: boolean;
}

const TARGETS: Readonly<Record<Call, string>> = {
  start: "/start_weight_update",
  part: "/update_weights",
  finish: "/finish_weight_update",
  abort: "/abort_weight_update",
  pause: "/pause?mode=keep",
  resume: "/resume",
  sleep: "/sleep",
  wake: "/wake_up",
};

class World {
  readonly #kind: Kind;
  /** Engines by number. A server outlives its connections. */
  readonly #engines: (ModelEngine | undefined)[] = [];
  readonly #engineOf = new Map<object, ModelEngine>();
  readonly #gates: ((() => void) | undefined)[] = [];
  /** Weights that generated the first token of each weight epoch. */
  readonly #weightsOf = new Map<number, string>();
  readonly #pending = new Set<string>();
  readonly requests: RolloutRequest[] = [];
  fixture: ControlFixture | null = null;
  #serial = 0;

  constructor(kind: Kind) {
    this.#kind = kind;
  }

  /** Engines are opened before the fixture is there. */
  made(worker: ScriptedWorker, index: number): void {
    const isPart = () => this.#at.weights.pauseState().reason?.includes("is open") === true;
    const kept = this.#kind.keepsWeights ? this.#engines[index] : undefined;
    const model = kept ?? new ModelEngine(isPart);
    this.#engines[index] = model;
    this.#engineOf.set(worker, model);
    model.serve(worker, this.#kind);
    const { listen } = worker;
    worker.listen = (listener) =>
      listen.call(worker, (epoch, events) => {
        const isCurrent = epoch === this.#at.sidecar.rollout.epoch;
        if (isCurrent && events.some(({ kind }) => kind === "tokens"))
          this.#generated(epoch, model);
        listener(epoch, events);
      });
  }

  async act(op: Op): Promise<void> {
    const fixture = this.#at;
    switch (op.kind) {
      case "whole": {
        const kwargs = op.hasPath
          ? { weights_path: `/w/${this.#next()}` }
          : { serial: this.#next() };
        return this.#call("/collective_rpc", { method: "reload_weights", kwargs });
      }
      case "call":
        return this.#call(TARGETS[op.call], { serial: this.#next() });
      case "adapter": {
        const path = op.isLoaded ? "/v1/load_lora_adapter" : "/v1/unload_lora_adapter";
        return this.#call(path, { lora_name: op.name, lora_path: `/lora/${this.#next()}` });
      }
      case "time":
        if (op.what === "retry") await fixture.retry();
        else if (op.what === "polls") await fixture.passPolls();
        else await fixture.passTime();
        return;
      case "engine":
        return this.#onEngine(op.what, op.engine);
      case "fault":
        this.#engines[op.engine]?.faults.push(op.fault);
        return;
      case "ask":
        try {
          this.requests.push(...fixture.ask(op.count));
        } catch (error) {
          if (!(error instanceof AppError)) throw error;
        }
    }
  }

  async turns(count: number): Promise<void> {
    for (let i = 0; i <= count; i += 1) {
      await this.#at.step();
      this.#checkServing();
    }
  }

  /** Everything that was broken works again, and time passes. */
  async heal(): Promise<void> {
    for (let round = 0; round < 30; round += 1) {
      for (let i = 0; i < ENGINES; i += 1) {
        this.#engines[i]?.faults.splice(0);
        this.#onEngine("ungate", i);
        this.#onEngine("regain", i);
      }
      await this.#at.retry();
      await this.#at.passPolls();
      if (round % 3 === 2) {
        this.#at.clock.advance(10_000);
        await this.#at.passTime();
      }
      await this.turns(2);
      if (this.#pending.size === 0 && round > 6) return;
    }
    assert(this.#pending.size === 0, `hangs: ${[...this.#pending].join(", ")}`);
  }

  /** Checks the state after `heal`. */
  async checkHealed(): Promise<void> {
    const { pool, sidecar, weights } = this.#at;
    assert(!weights.isUpdating, "no update is open once time has passed");
    // An engine that failed at the update itself waits for the next one; no other does.
    if (typeof pool.held.base !== "string")
      this.#allReady((reason) => /answered [45]\d\d/.test(reason));
    await this.#ends(() =>
      this.#call("/collective_rpc", {
        method: "reload_weights",
        kwargs: { weights_path: "/w/last" },
      }),
    );
    await this.heal();
    this.#allReady(() => false);
    for (const { worker } of pool.members) {
      assert(this.#engineOf.get(worker ?? {})?.base === "/w/last", "each has the last weights");
    }
    this.#call("/resume", {});
    for (let i = 0; i < 2_000 && sidecar.rollout.unfinished > 0; i += 1) await this.turns(0);
    for (const { response, status } of this.requests) {
      assert(status === "finished", "every request ends");
      const isWhole = response.finish === "stop" && response.length === OUTPUT_TOKENS;
      assert(isWhole || response.refusal !== null, `a response ends as ${response.finish}`);
    }
  }

  async #ends(act: () => void): Promise<void> {
    act();
    for (let i = 0; i < 200 && this.#pending.size > 0; i += 1) await this.turns(0);
  }

  #allReady(isExcused: (reason: string) => boolean): void {
    for (const { source, state, reason } of this.#at.pool.members) {
      const isFine = state === "ready" || (state === "fenced" && isExcused(reason ?? ""));
      assert(isFine, `${source.name} is ${state}: ${reason}`);
    }
  }

  get #at(): ControlFixture {
    const { fixture } = this;
    assert(fixture !== null, "the world has a fixture");
    return fixture;
  }

  #next(): number {
    this.#serial += 1;
    return this.#serial;
  }

  #call(target: string, body: object): void {
    const name = `${target} ${this.#next()}`;
    this.#pending.add(name);
    const ended = () => this.#pending.delete(name);
    this.#at.send(target, body).then(ended, (error) => {
      ended();
      if (!(error instanceof AppError)) this.#broken ??= error;
    });
  }

  #broken: unknown = null;

  #onEngine(what: OnEngine, index: number): void {
    const { pool, opened } = this.#at;
    const member = pool.members.find(({ source }) => source.name === `engine-${index}`);
    const model = this.#engines[index];
    switch (what) {
      case "join":
        if (member === undefined || member.state === "leaving") this.#at.join(index);
        return;
      case "leave":
        if (member !== undefined && pool.members.length > 1) void pool.leave(member.workerId, 500);
        return;
      case "lose":
        this.#at.lose(index);
        return;
      case "regain":
        this.#at.regain(index);
        return;
      case "gate": {
        const gate = Promise.withResolvers<void>();
        this.#gates[index]?.();
        this.#gates[index] = gate.resolve;
        if (model !== undefined) model.gate = gate.promise;
        return;
      }
      case "ungate":
        this.#gates[index]?.();
        if (model !== undefined) model.gate = null;
        return;
      case "restart":
        this.#engines[index] = undefined;
        opened[index]?.at(-1)?.kill();
        return;
      case "drop":
        opened[index]?.at(-1)?.kill();
    }
  }

  #keyOf(model: ModelEngine | undefined): string {
    const served = [...this.#at.weights.adapters].sort();
    return [model?.base, ...served.map((name) => `${name}=${model?.adapters.get(name)}`)].join(" ");
  }

  #generated(epoch: number, model: ModelEngine): void {
    const key = this.#keyOf(model);
    const first = this.#weightsOf.get(epoch) ?? key;
    this.#weightsOf.set(epoch, first);
    if (first !== key)
      this.#broken ??= new Error(`epoch ${epoch}: tokens of ${first} and of ${key}`);
  }

  #checkServing(): void {
    if (this.#broken !== null) throw this.#broken;
    const { pool, weights, sidecar } = this.#at;
    if (weights.isUpdating) return;
    const ready = pool.members.filter(({ state }: Member) => state === "ready");
    const { epoch } = sidecar.rollout;
    const keys = new Set(ready.map(({ worker }) => this.#keyOf(this.#engineOf.get(worker ?? {}))));
    const first = this.#weightsOf.get(epoch);
    if (first !== undefined && ready.length > 0) keys.add(first);
    assert(keys.size <= 1, `epoch ${epoch} is served with ${[...keys].join(" and with ")}`);
  }
}

for (const kind of [
  { keepsWeights: true, names: false },
  { keepsWeights: false, names: false },
  { keepsWeights: false, names: true },
]) {
  test(`control: engines that serve have the same weights, whatever happens when: ${JSON.stringify(kind)}`, async () => {
    const property = fc.asyncProperty(plans, async (plan) => {
      const world = new World(kind);
      const made = (worker: ScriptedWorker, index: number) => world.made(worker, index);
      world.fixture = await ControlFixture.open({ keepsWeights: kind.keepsWeights, made });
      for (const { op, turns } of plan) {
        await world.act(op);
        await world.turns(turns);
      }
      await world.heal();
      await world.checkHealed();
      await world.fixture.pool.close();
    });
    await fc.assert(property, { seed: SEED, numRuns: RUNS });
  }, 600_000);
}
