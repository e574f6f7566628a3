// Messages of a worker link: one message is one frame of the WebSocket. The schemas are what each side takes of the
// other; the types are theirs.

import * as v from "valibot";
import { type GroupId, groupId, requestId, weightEpoch, weightsId } from "../../core/base/ids.ts";
import { VERIFICATION_WORDS } from "../../core/request/response.ts";
import { OPERATION } from "../../core/rollout/operation.ts";
import type { TokenColumns } from "../packed-events.ts";
import { floats, view, words } from "./frame.ts";
import { BARRIER_ID, ID_BYTES_MAX, INT_MAX, NAME_CHARS_MAX, SIDECAR_CHARS_MAX } from "./limits.ts";

const UINT_MAX = 0xffffffff;
const COMMANDS_MAX = 1_048_576;
/** Limit of stop tokens and of biases in one request. */
const LIST_MAX = 262_144;
const OTHERS_MAX = 1_048_576;

const whole = (max: number = INT_MAX, min = 0) =>
  v.pipe(v.number(), v.safeInteger(), v.minValue(min), v.maxValue(max));
const uint = whole(UINT_MAX);
const large = whole(Number.MAX_SAFE_INTEGER);
/** Any number, in or out of range: the worker judges it, for it is one request's fault, and no broken frame. */
const anyNumber = v.union([v.number(), v.pipe(v.string(), v.maxLength(20), v.transform(Number))]);
const real = (min: number) => v.pipe(v.number(), v.minValue(min));
const text = (max: number) => v.pipe(v.string(), v.maxLength(max));
/** An engine's message may be longer than is of use. */
const reason = v.pipe(
  v.string(),
  v.transform((all) => all.slice(0, NAME_CHARS_MAX)),
);
const list = <S extends v.GenericSchema>(item: S, max: number) =>
  v.pipe(v.array(item), v.maxLength(max), v.readonly());

const epoch = v.pipe(uint, v.transform(weightEpoch));
const request = v.pipe(whole(BARRIER_ID - 1), v.transform(requestId));
const group = v.pipe(
  v.string(),
  v.nonEmpty(),
  v.transform((id): GroupId => groupId(id)),
);
const weights = v.nullable(v.pipe(v.string(), v.regex(/^[\w.-]{1,64}$/), v.transform(weightsId)));
const tokens = v.pipe(
  words,
  v.check((all) => all.every((token) => token >= 0), "a token is below 0"),
);

/** KV whose parts came before the message. */
const kv = v.nullable(v.object({ tokens: whole(), bytes: whole(Number.MAX_SAFE_INTEGER, 1) }));

/** A part of KV. The first has offset 0, the last ends at `total`, the bytes of the whole. */
const kvPart = v.pipe(
  v.object({ offset: large, total: whole(Number.MAX_SAFE_INTEGER, 1), bytes: view }),
  v.check(({ offset, total }) => offset <= total, "it begins behind its end"),
);

const shaping = v.object({
  ...v.entriesFromList(
    [
      "tokensMin",
      "topK",
      "topP",
      "minP",
      "repetitionPenalty",
      "presencePenalty",
      "frequencyPenalty",
    ],
    anyNumber,
  ),
  logitBias: list(v.object({ token: anyNumber, bias: anyNumber }), LIST_MAX),
});

const sampling = v.object({
  ...v.entriesFromList(["temperature", "seed", "tokensMax", "topLogprobs"], anyNumber),
  stopTokenIds: list(uint, LIST_MAX),
  shaping: v.nullable(shaping),
  engineFields: v.nullable(v.record(v.string(), v.unknown())),
});

const command = v.variant("kind", [
  v.object({
    kind: v.literal("run"),
    /** Numbers the runs of a session, so that late events of an earlier run are known as such. */
    run: whole(INT_MAX, 1),
    request: v.object({
      requestId: request,
      groupId: group,
      sampleIndex: whole(),
      prompt: words,
      sampling,
      draw: v.object({ hi: uint, lo: uint }),
      divisible: v.boolean(),
    }),
    output: words,
    chunkTokens: anyNumber,
    priority: v.picklist(["high", "low"]),
    kv,
    draft: v.nullable(v.object({ groupId: group, sampleIndex: whole() })),
  }),
  v.object({ kind: v.literal("export"), requestId: request }),
  v.object({ kind: v.literal("release"), requestId: request }),
  v.object({ kind: v.literal("park"), requestId: request }),
  v.object({ kind: v.literal("register_group"), groupId: group, prompt: words }),
  v.pipe(
    v.object({
      kind: v.literal("delta"),
      groupId: group,
      sampleIndex: whole(),
      offset: whole(),
      tokens,
    }),
    v.check((delta) => delta.offset <= INT_MAX - delta.tokens.length, "it is too long"),
  ),
  v.object({ kind: v.literal("drop_group"), groupId: group }),
  v.object({ kind: v.literal("advance"), epoch }),
]);

const hello = v.object({
  kind: v.literal("hello"),
  protocolVersion: uint,
  token: text(NAME_CHARS_MAX),
  /** Limit of one KV; 0: none may come. */
  kvBytesMax: large,
  /** Random, and the same for all sessions of one sidecar with one host. */
  sidecarId: text(ID_BYTES_MAX),
  /** Display name. */
  sidecarName: text(SIDECAR_CHARS_MAX),
});

export const SIDECAR_MESSAGE = v.variant("kind", [
  hello,
  v.object({ kind: v.literal("heartbeat") }),
  /** The sidecar needs the worker no more. */
  v.object({ kind: v.literal("bye") }),
  v.object({ kind: v.literal("kv_part"), part: kvPart }),
  v.object({ kind: v.literal("commands"), commands: list(command, COMMANDS_MAX) }),
  v.object({
    kind: v.literal("operation"),
    operationId: uint,
    operation: OPERATION,
    nextEpoch: epoch,
  }),
]);

/** Upper limits of what the host accepts from the sidecar. */
const hostLimits = v.object({
  messageBytesMax: uint,
  /** Limit of one KV; 0: none may come. */
  kvBytesMax: large,
  requestsMax: whole(UINT_MAX, 1),
});

const welcome = v.object({
  kind: v.literal("welcome"),
  protocolVersion: uint,
  /** Random, and the same for as long as the host's process lives. */
  hostRun: text(ID_BYTES_MAX),
  epoch,
  vocabularySize: whole(INT_MAX, 1),
  capacity: v.object({
    slots: whole(INT_MAX, 1),
    kvTokens: whole(Number.MAX_SAFE_INTEGER, 1),
    contextTokens: whole(INT_MAX, 1),
    kvBytesPerToken: uint,
    baseRows: v.exactOptional(v.pipe(v.number(), v.minValue(0))),
    drafts: v.exactOptional(v.boolean()),
  }),
  limits: hostLimits,
  /** null: not known. */
  weights,
});

const drafts = v.pipe(
  v.object({
    draftedTokens: whole(),
    acceptedTokens: whole(),
    verifications: v.exactOptional(words),
  }),
  v.check(({ draftedTokens, acceptedTokens, verifications }) => {
    if (acceptedTokens > draftedTokens) return false;
    const threes = verifications ?? [];
    return (
      threes.length % VERIFICATION_WORDS === 0 &&
      threes.every((word, i) => word >= 0 && (i % 3 !== 2 || word <= Number(threes[i - 1])))
    );
  }, "more tokens are accepted than drafted"),
);

/** An event of the worker port that holds no tokens; what belongs to a run names it by its number. */
const other = v.variant("kind", [
  v.pipe(
    v.object({
      kind: v.literal("chunk_done"),
      run: whole(INT_MAX, 1),
      finish: v.nullable(v.picklist(["stop", "length", "abort"])),
      refusal: v.exactOptional(v.object({ status: whole(599, 400), message: reason })),
      drafts: v.exactOptional(drafts),
    }),
    v.check(
      ({ finish, refusal }) => refusal === undefined || finish === "abort",
      "a refusal ends its request",
    ),
  ),
  v.object({ kind: v.literal("exported"), requestId: request, kv }),
  v.object({ kind: v.literal("evicted"), requestId: request }),
  v.object({ kind: v.literal("preempted"), requestId: request, tokens: whole() }),
  v.object({
    kind: v.literal("stats"),
    stats: v.object({
      ...v.entriesFromList(["running", "waiting", "kvTokensUsed", "steps", "outputTokens"], large),
      ...v.entriesFromList(["prefillTokens", "recomputedTokens", "preemptions", "drafts"], large),
      ...v.entriesFromList(["draftedTokens", "acceptedTokens", "kvLoads", "kvLoadFailures"], large),
      ...v.entriesFromList(["busyMs", "draftMs"], real(0)),
      draftSavedMs: v.exactOptional(v.number()),
      stepError: v.exactOptional(real(0)),
    }),
  }),
  v.object({ kind: v.literal("advanced"), epoch }),
  v.object({ kind: v.literal("gap"), groupId: group, sampleIndex: whole(), offset: whole() }),
  v.object({ kind: v.literal("failed"), message: reason }),
]);

export const HOST_MESSAGE = v.variant("kind", [
  welcome,
  v.object({ kind: v.literal("heartbeat") }),
  v.object({ kind: v.literal("kv_part"), part: kvPart }),
  v.object({
    kind: v.literal("events"),
    epoch,
    ...v.entriesFromList(["heads", "tokens", "topTokens"], words),
    ...v.entriesFromList(["logprobs", "topLogprobs"], floats),
    others: list(other, OTHERS_MAX),
  }),
  v.object({
    kind: v.literal("answer"),
    operationId: uint,
    answer: v.object({ status: whole(599, 100), body: v.optional(v.unknown(), null) }),
    /** The worker's weights when it answered; null: not known. */
    weights,
  }),
]);

export type KvPart = v.InferOutput<typeof kvPart>;
export type WireKv = NonNullable<v.InferOutput<typeof kv>>;
export type HostLimits = v.InferOutput<typeof hostLimits>;
export type Hello = v.InferOutput<typeof hello>;
export type Welcome = v.InferOutput<typeof welcome>;
export type WireCommand = v.InferOutput<typeof command>;
export type SidecarMessage = v.InferOutput<typeof SIDECAR_MESSAGE>;
export type OtherEvent = v.InferOutput<typeof other>;
export type TokensEvent = TokenColumns & { readonly kind: "tokens"; readonly run: number };
export type WireEvent = TokensEvent | OtherEvent;
type PackedMessage = v.InferOutput<typeof HOST_MESSAGE>;
/** The events of a frame before they are in order again. */
export type PackedEvents = Extract<PackedMessage, { kind: "events" }>;
export type HostMessage =
  | Exclude<PackedMessage, { kind: "events" }>
  | (Pick<PackedEvents, "kind" | "epoch"> & { readonly events: readonly WireEvent[] });
