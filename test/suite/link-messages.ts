// Messages of the worker link, as fast-check draws them: all that its codecs can express.

import fc from "fast-check";
import { groupId, requestId, weightEpoch, weightsId } from "../../src/core/base/ids.ts";
import { TOP_LOGPROBS } from "../../src/core/request/sampling-bounds.ts";
import type { EngineOperation } from "../../src/core/rollout/operation.ts";
import { BARRIER_ID, INT_MAX } from "../../src/engines/remote/limits.ts";
import type {
  HostMessage,
  SidecarMessage,
  WireCommand,
  WireEvent,
} from "../../src/engines/remote/message.ts";
import { kind } from "./arbitraries.ts";
import { charactersOf } from "./characters.ts";

const uint31 = fc.integer({ min: 0, max: INT_MAX });
const uint32 = fc.integer({ min: 0, max: 0xffffffff });
const whole = fc.nat({ max: Number.MAX_SAFE_INTEGER });
const some = fc.integer({ min: 1, max: INT_MAX });
const epoch = uint32.map(weightEpoch);
const id = charactersOf({ minLength: 1, maxLength: 40 }).map(groupId);
const request = fc.integer({ min: 0, max: BARRIER_ID - 1 }).map(requestId);
const text = fc.string({ maxLength: 30 });
const tokens = fc.array(uint31, { maxLength: 20 }).map((list) => Int32Array.from(list));
const float = (min: number, max: number) => fc.double({ min, max, noNaN: true });
/** Any number: the codec does not check its meaning. JSON has no -0, which sampling does not tell from 0. */
const real = fc.double().map((value) => value + 0);
const bytes = fc.uint8Array({ maxLength: 60 }).map((list) => Uint8Array.from(list));
const kv = fc.option(fc.record({ tokens: uint31, bytes: fc.integer({ min: 1, max: 2 ** 40 }) }));
const kvPart = fc
  .record({ offset: uint31, rest: uint31, bytes })
  .map(({ offset, rest, bytes: part }) => ({ offset, total: offset + rest + 1, bytes: part }));
const json = fc.jsonValue({ maxDepth: 2 }).map((value) => JSON.parse(JSON.stringify(value)));
const named = fc.dictionary(fc.string({ minLength: 1, maxLength: 8 }), json, {
  noNullPrototype: true,
  maxKeys: 4,
});

const shaping = fc.record({
  tokensMin: uint32,
  topK: uint32,
  topP: real,
  minP: real,
  repetitionPenalty: real,
  presencePenalty: real,
  frequencyPenalty: real,
  logitBias: fc.array(fc.record({ token: uint31, bias: real }), { maxLength: 4 }),
});

const sampling = fc.record({
  temperature: real,
  seed: fc.maxSafeInteger(),
  tokensMax: uint32,
  stopTokenIds: fc.array(uint32, { maxLength: 5 }),
  shaping: fc.option(shaping),
  topLogprobs: uint32,
  engineFields: fc.option(named),
});

const command: fc.Arbitrary<WireCommand> = fc.oneof(
  fc.record({
    kind: kind("run"),
    run: some,
    request: fc.record({
      requestId: request,
      groupId: id,
      sampleIndex: uint31,
      prompt: tokens,
      sampling,
      draw: fc.record({ hi: uint32, lo: uint32 }),
      divisible: fc.boolean(),
    }),
    output: tokens,
    chunkTokens: uint32,
    priority: fc.constantFrom("high" as const, "low" as const),
    kv,
    draft: fc.option(fc.record({ groupId: id, sampleIndex: uint31 })),
  }),
  fc.record({
    kind: fc.constantFrom("export" as const, "release" as const, "park" as const),
    requestId: request,
  }),
  fc.record({ kind: kind("register_group"), groupId: id, prompt: tokens }),
  fc.record({
    kind: kind("delta"),
    groupId: id,
    sampleIndex: uint31,
    offset: fc.integer({ min: 0, max: INT_MAX - 100 }),
    tokens,
  }),
  fc.record({ kind: kind("drop_group"), groupId: id }),
  fc.record({ kind: kind("advance"), epoch }),
);

const operation: fc.Arbitrary<EngineOperation> = fc.oneof(
  fc.record({ kind: kind("canary"), adapter: fc.option(text) }),
  fc.record({
    kind: kind("load"),
    path: text,
    version: fc.option(text),
    options: fc.dictionary(text, json, { noNullPrototype: true, maxKeys: 4 }),
  }),
  fc.record({
    kind: kind("sleep"),
    level: fc.constantFrom(0 as const, 1 as const, 2 as const),
    mode: fc.constantFrom("keep" as const, null),
  }),
  fc.record({ kind: kind("wake"), tags: fc.array(text) }),
  fc.record({ kind: kind("extension"), name: text, body: json }),
);

export const sidecarMessage: fc.Arbitrary<SidecarMessage> = fc.oneof(
  fc.record({ kind: fc.constantFrom("heartbeat" as const, "bye" as const) }),
  fc.record({
    kind: kind("hello"),
    protocolVersion: uint32,
    token: text,
    kvBytesMax: whole,
    sidecarId: text,
    sidecarName: text,
  }),
  fc.record({ kind: kind("commands"), commands: fc.array(command, { maxLength: 4 }) }),
  fc.record({ kind: kind("kv_part"), part: kvPart }),
  fc.record({ kind: kind("operation"), operationId: uint32, operation, nextEpoch: epoch }),
);

const logprob = fc.float({ noNaN: true });
const tokenEvent: fc.Arbitrary<WireEvent> = fc
  .record({
    run: some,
    offset: fc.integer({ min: 0, max: INT_MAX - 100 }),
    rows: fc.array(fc.record({ token: uint31, logprob }), { maxLength: 6 }),
    topCount: fc.integer({ min: 0, max: TOP_LOGPROBS.max }),
    top: fc.record({ token: fc.integer({ min: -1, max: INT_MAX }), logprob }),
  })
  .map(({ run, offset, rows, topCount, top }) => {
    const cells = topCount * rows.length;
    return {
      kind: "tokens",
      run,
      offset,
      tokens: Int32Array.from(rows, (row) => row.token),
      logprobs: Float32Array.from(rows, (row) => row.logprob),
      top:
        topCount === 0
          ? null
          : {
              count: topCount,
              tokens: new Int32Array(cells).fill(top.token),
              logprobs: new Float32Array(cells).fill(top.logprob),
            },
    };
  });

/** Figures that a worker reports once step times are known. */
const stepTimes = fc.record(
  { draftSavedMs: float(-1e9, 1e9), stepError: float(0, 1) },
  { requiredKeys: [] },
);

const CHUNK_DONE = { kind: kind("chunk_done"), run: some };
const event: fc.Arbitrary<WireEvent> = fc.oneof(
  { arbitrary: tokenEvent, weight: 4 },
  fc.record({
    ...CHUNK_DONE,
    finish: fc.option(fc.constantFrom("stop" as const, "length" as const, "abort" as const)),
  }),
  fc.record({
    ...{ ...CHUNK_DONE, finish: kind("abort") },
    refusal: fc.record({ status: fc.integer({ min: 400, max: 599 }), message: text }),
  }),
  fc.record({
    ...{ ...CHUNK_DONE, finish: kind("stop") },
    drafts: fc.tuple(uint31, uint31).map(([a, b]) => {
      const [most, least] = [Math.max(a, b), Math.min(a, b)];
      const counts = { draftedTokens: most, acceptedTokens: least };
      if (a === b) return a === 0 ? { ...counts, verifications: new Int32Array(0) } : counts;
      return { ...counts, verifications: Int32Array.of(a, 1, 0, b, most, least) };
    }),
  }),
  fc.record({ kind: kind("exported"), requestId: request, kv }),
  fc.record({ kind: kind("evicted"), requestId: request }),
  fc.record({ kind: kind("preempted"), requestId: request, tokens: uint31 }),
  fc.record({ kind: kind("advanced"), epoch }),
  fc.record({ kind: kind("gap"), groupId: id, sampleIndex: uint31, offset: uint31 }),
  fc.record({ kind: kind("failed"), message: text }),
  fc.record({
    kind: kind("stats"),
    stats: fc
      .tuple(
        fc.record({
          running: whole,
          waiting: whole,
          kvTokensUsed: whole,
          steps: whole,
          busyMs: float(0, 1e9),
          draftMs: float(0, 1e9),
          outputTokens: whole,
          prefillTokens: whole,
          recomputedTokens: whole,
          preemptions: whole,
          draftedTokens: whole,
          acceptedTokens: whole,
          drafts: whole,
          kvLoads: whole,
          kvLoadFailures: whole,
        }),
        stepTimes,
      )
      .map(([stats, times]) => ({ ...stats, ...times })),
  }),
);

const weights = fc.option(fc.stringMatching(/^[\w.-]{1,64}$/).map(weightsId));

const welcome = fc.record({
  kind: kind("welcome"),
  protocolVersion: uint32,
  hostRun: text,
  epoch,
  vocabularySize: some,
  capacity: fc.record({
    slots: some,
    kvTokens: whole.map((value) => value + 1).filter(Number.isSafeInteger),
    contextTokens: some,
    kvBytesPerToken: uint32,
    baseRows: whole,
    drafts: fc.boolean(),
  }),
  limits: fc.record({ messageBytesMax: uint32, kvBytesMax: whole, requestsMax: some }),
  weights,
});

export const hostMessage: fc.Arbitrary<HostMessage> = fc.oneof(
  { arbitrary: fc.record({ kind: kind("events"), epoch, events: fc.array(event) }), weight: 3 },
  fc.record({ kind: kind("heartbeat") }),
  welcome,
  fc.record({ kind: kind("kv_part"), part: kvPart }),
  fc.record({
    kind: kind("answer"),
    operationId: uint32,
    answer: fc.record({ status: fc.integer({ min: 100, max: 599 }), body: json }),
    weights,
  }),
);
