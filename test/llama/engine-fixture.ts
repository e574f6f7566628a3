// What the engine's tests share: the bundled model on portable kernels, a drafter whose drafts are written
// by the test, and a driver that collects what an engine says. Used by tests only.

import { expect } from "bun:test";
import { join } from "node:path";
import { assert } from "../../src/core/base/assert.ts";
import type { Clock } from "../../src/core/base/clock.ts";
import { AppError } from "../../src/core/base/errors.ts";
import { mix32 } from "../../src/core/base/hash.ts";
import { type GroupId, groupId, weightEpoch } from "../../src/core/base/ids.ts";
import type { DraftPlanner, Offer } from "../../src/core/draft/draft-length.ts";
import type { Drafter, DraftQuery, Drafts, UpdateResult } from "../../src/core/draft/drafter.ts";
import { Replica } from "../../src/core/draft/replica.ts";
import type { RequestSpec } from "../../src/core/request/request.ts";
import type { KvBlob, WorkerEvent } from "../../src/core/rollout/worker.ts";
import { LlamaEngine, type LlamaEngineOptions } from "../../src/engines/llama/engine.ts";
import { loadBackend, openLibrary } from "../../src/engines/llama/native.ts";
import type { RunCommand } from "../../src/engines/llama/sequence.ts";
import { LlamaTokenizer } from "../../src/engines/llama/tokenizer.ts";
import { LlamaWeights } from "../../src/engines/llama/weights.ts";
import { samplingOf, specOf } from "../suite/request-spec.ts";

const MODEL_FOLDER = join(import.meta.dir, "..", "..", "model");
export const MODEL_PATH = join(MODEL_FOLDER, "foretoken-3m-q8_0.gguf");
/** The same model as Hugging Face has it, without its weights. */
export const HF_FOLDER = join(import.meta.dir, "..", "fixtures", "foretoken-3m-hf");
export const OTHER_MODEL_PATH = join(MODEL_FOLDER, "foretoken-3m-f16.gguf");

/** Why the tests of the native library are skipped; null: they run. */
export const skipReason: string | null = (() => {
  try {
    openLibrary();
    return null;
  } catch (error) {
    if (!(error instanceof AppError) || error.code !== "native_library_missing") throw error;
    console.log(`skipped: ${error.message}`);
    return error.message;
  }
})();

/** Time that stands still: an engine's results must not need any. */
export const stillClock: Clock = { nowMs: () => 0 };

interface Shared {
  readonly model: LlamaWeights;
  readonly tokenizer: LlamaTokenizer;
}

let shared: Shared | null = null;

/** The bundled model on portable kernels, loaded once for all tests of the process. */
export function sharedModel(): Shared {
  if (shared === null) {
    loadBackend({ deterministic: true });
    const model = LlamaWeights.load(MODEL_PATH);
    shared = { model, tokenizer: LlamaTokenizer.load(MODEL_PATH) };
  }
  return shared;
}

export const EPOCH = weightEpoch(0);

/** Decides against every draft. */
export const NO_DRAFTS: DraftPlanner = {
  probabilityMin: 1,
  wantsDrafts: () => false,
  choose: () => 0,
};

export function newEngine(options: Partial<LlamaEngineOptions> = {}): LlamaEngine {
  return new LlamaEngine({
    model: sharedModel().model,
    slots: 4,
    kvTokens: 4000,
    contextTokens: 512,
    epoch: EPOCH,
    cpuClock: stillClock,
    speculation: { drafter: new Replica(), planner: NO_DRAFTS },
    ...options,
  });
}

const PROMPTS = [
  "<|user|>countdown 3 7 8 to 29<|assistant|>",
  "<|user|>collatz 648<|assistant|>",
  "<|user|>sort 9 27 4<|assistant|>",
  "<|user|>total 3 8 1<|assistant|>",
];

/** Request `id` of a fixed family: prompts in turn, one group per prompt. */
export function newRequest(
  id: number,
  sampling: Partial<RequestSpec["sampling"]> = {},
): RequestSpec {
  const prompt = PROMPTS[id % PROMPTS.length] ?? "";
  return specOf(id, {
    groupId: groupId(`g${id % PROMPTS.length}`),
    sampleIndex: Math.floor(id / PROMPTS.length),
    prompt: sharedModel().tokenizer.encode(prompt),
    sampling: samplingOf({ seed: 7, tokensMax: 48, stopTokenIds: [1359], ...sampling }),
  });
}

/** A `run` from the start, without KV, in one chunk, unless told otherwise. */
export function run(request: RequestSpec, options: Partial<RunCommand> = {}): RunCommand {
  return {
    kind: "run",
    request,
    output: new Int32Array(0),
    chunkTokens: request.sampling.tokensMax,
    priority: "low",
    kv: null,
    draft: { groupId: request.groupId, sampleIndex: request.sampleIndex },
    ...options,
  };
}

export interface Response {
  readonly tokens: number[];
  readonly logprobs: number[];
  /** Rows of alternatives, one after another. */
  readonly topTokens: number[];
  readonly topLogprobs: number[];
  finish: string | null;
  chunks: number;
}

/** Applies an engine's events, checking that no token is lost, repeated or out of order. */
export class Collector {
  readonly responses = new Map<number, Response>();
  readonly others: WorkerEvent[] = [];
  readonly exported = new Map<number, KvBlob | null>();

  response(id: number): Response {
    let response = this.responses.get(id);
    if (response === undefined) {
      const empty = { tokens: [], logprobs: [], topTokens: [], topLogprobs: [] };
      response = { ...empty, finish: null, chunks: 0 };
      this.responses.set(id, response);
    }
    return response;
  }

  output(id: number): Int32Array {
    return Int32Array.from(this.response(id).tokens);
  }

  take(events: readonly WorkerEvent[]): void {
    for (const event of events) {
      if (event.kind === "tokens") {
        const response = this.response(event.requestId);
        assert(event.offset === response.tokens.length, "tokens come in order, each once");
        assert(response.finish === null, "nothing comes after the end");
        assert(event.tokens.length === event.logprobs.length, "each token has its logprob");
        response.tokens.push(...event.tokens);
        response.logprobs.push(...event.logprobs);
        if (event.top !== null) {
          assert(event.top.tokens.length === event.tokens.length * event.top.count, "whole rows");
          response.topTokens.push(...event.top.tokens);
          response.topLogprobs.push(...event.top.logprobs);
        }
      } else if (event.kind === "chunk_done") {
        const response = this.response(event.requestId);
        response.finish = event.finish;
        response.chunks += 1;
      } else if (event.kind === "exported") {
        this.exported.set(event.requestId, event.kv);
      }
      if (event.kind !== "tokens") this.others.push(event);
    }
  }
}

/** Steps until nothing is left to do. */
export function runToEnd(engine: LlamaEngine, collector = new Collector()): Collector {
  while (engine.step()) collector.take(engine.drain());
  collector.take(engine.drain());
  return collector;
}

const references = new Map<string, Response>();

/** The response of a request that runs alone, undisturbed, prompt and output one token at a time. */
export function soloResponse(request: RequestSpec): Response {
  const { prompt, ...rest } = request;
  const name = JSON.stringify([rest, [...prompt]]);
  let response = references.get(name);
  if (response === undefined) {
    const engine = newEngine({ slots: 1, prefillRows: 1 });
    engine.command(run(request));
    response = runToEnd(engine).response(request.requestId);
    engine.close();
    references.set(name, response);
  }
  return response;
}

/** Each response is that of the request run alone, bit for bit. */
export function expectSolo(collector: Collector, ...specs: readonly RequestSpec[]): void {
  for (const spec of specs) {
    const { tokens, logprobs, finish } = collector.response(spec.requestId);
    const solo = soloResponse(spec);
    expect({ tokens, finish }).toEqual({ tokens: solo.tokens, finish: solo.finish });
    expect(logprobs).toEqual(solo.logprobs);
  }
}

/** One draft as a test writes it: tokens with the index of the token before, -1 for the first. */
export interface ScriptedDraft {
  readonly tokens: readonly number[];
  readonly parents: readonly number[];
}

/** Input of a script: the response drawn so far, and the complete one. */
export interface ScriptView {
  readonly query: DraftQuery;
  readonly have: number;
  readonly future: readonly number[];
  /** Changes with every call: a script's source of variety. */
  readonly dice: number;
}

/** A drafter that proposes what a script says, and insists on being kept up to date without a gap. */
export class ScriptedDrafter implements Drafter {
  readonly have = new Map<string, number[]>();
  proposals = 0;
  readonly #groups = new Set<GroupId>();
  readonly #future: (query: DraftQuery) => readonly number[];
  readonly #script: (view: ScriptView) => ScriptedDraft;
  #dice = 1;

  constructor(
    future: (query: DraftQuery) => readonly number[],
    script: (view: ScriptView) => ScriptedDraft,
  ) {
    this.#future = future;
    this.#script = script;
  }

  register(group: GroupId): void {
    this.#groups.add(group);
  }

  has(group: GroupId): boolean {
    return this.#groups.has(group);
  }

  update(group: GroupId, sampleIndex: number, offset: number, tokens: Int32Array): UpdateResult {
    if (!this.#groups.has(group)) return { kind: "ok" };
    const log = this.#log(group, sampleIndex);
    if (offset > log.length) return { kind: "gap", have: log.length };
    log.push(...tokens.subarray(log.length - offset));
    return { kind: "ok" };
  }

  drop(group: GroupId): void {
    this.#groups.delete(group);
    for (const name of this.have.keys()) {
      if (name.startsWith(`${group}/`)) this.have.delete(name);
    }
  }

  clear(): void {
    this.#groups.clear();
    this.have.clear();
  }

  propose(queries: readonly DraftQuery[]): Drafts {
    this.proposals += 1;
    const start = [0];
    const tokens: number[] = [];
    const parents: number[] = [];
    const probabilities: number[] = [];
    for (const query of queries) {
      if (this.#groups.has(query.groupId)) {
        this.#dice = mix32(this.#dice + 1);
        const have = this.#log(query.groupId, query.sampleIndex).length;
        const future = this.#future(query);
        const draft = this.#script({ query, have, future, dice: this.#dice });
        tokens.push(...draft.tokens);
        parents.push(...draft.parents);
        probabilities.push(...draft.tokens.map((_, i) => 0.9 ** i));
      }
      start.push(tokens.length);
    }
    return {
      start: Int32Array.from(start),
      tokens: Int32Array.from(tokens),
      parents: Int32Array.from(parents),
      probabilities: Float32Array.from(probabilities),
    };
  }

  #log(group: GroupId, sampleIndex: number): number[] {
    const name = `${group}/${sampleIndex}`;
    let log = this.have.get(name);
    if (log === undefined) {
      log = [];
      this.have.set(name, log);
    }
    return log;
  }
}

/** A drafter that knows how each request will go on. `sound`: the request whose response it is. */
export function drafterFor(
  specs: readonly RequestSpec[],
  script: (view: ScriptView) => ScriptedDraft,
  sound: (spec: RequestSpec) => RequestSpec = (spec) => spec,
): ScriptedDrafter {
  const futures = new Map(
    specs.map((spec) => [`${spec.groupId}/${spec.sampleIndex}`, soloResponse(sound(spec)).tokens]),
  );
  const future = (query: DraftQuery) => futures.get(`${query.groupId}/${query.sampleIndex}`) ?? [];
  return new ScriptedDrafter(future, script);
}

export function register(engine: LlamaEngine, specs: readonly RequestSpec[]): void {
  for (const { groupId: group, prompt } of specs) {
    engine.command({ kind: "register_group", groupId: group, prompt });
  }
}

/** A path: what will be drawn, up to `right` tokens, then one token that will not. */
export function pathDraft(view: ScriptView, right: number): ScriptedDraft {
  const { query, have, future } = view;
  const tokens = future.slice(have, have + Math.min(query.tokensMax, right));
  if (tokens.length < query.tokensMax) tokens.push(wrongToken(future[have + tokens.length]));
  return { tokens, parents: tokens.map((_, i) => i - 1) };
}

export function wrongToken(right: number | undefined): number {
  return right === 100 ? 101 : 100;
}

/** A planner that verifies all tokens of the longest draft, up to `tokensMax`. */
export class FixedPlanner implements DraftPlanner {
  readonly probabilityMin = 0;
  readonly #tokensMax: number;

  constructor(tokensMax = 6) {
    this.#tokensMax = tokensMax;
  }

  wantsDrafts(): boolean {
    return this.#tokensMax > 0;
  }

  choose({ gains }: Offer): number {
    return Math.min(this.#tokensMax, gains.findLastIndex((gain) => gain > 0) + 1);
  }
}
