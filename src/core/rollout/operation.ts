// Operations of an engine beside its requests: its weights, its memory, and what a trainer or a client asks of it. Each
// kind of engine carries them out in its own way. The schema also checks those that files and other processes hold.

import * as v from "valibot";

const TEXT_CHARACTERS_MAX = 4096;
const LIST_MAX = 1024;

const text = v.pipe(v.string(), v.maxLength(TEXT_CHARACTERS_MAX));
/** Contents that a trainer or a client and the engine agree on, and that nothing between them reads. */
const contents = v.optional(v.unknown(), null);
/** Settings of the one who asks, which the engine may know. */
const settings = v.pipe(
  v.record(v.string(), v.string()),
  v.check((fields) => Object.keys(fields).length <= LIST_MAX, "it has too many fields"),
  v.readonly(),
);

export const OPERATION = v.variant("kind", [
  /** Serve the weights at `path`, named `version` by the trainer. `options`: of the engine's own loader. */
  v.object({
    kind: v.literal("load"),
    path: text,
    version: v.nullable(text),
    options: v.custom<Readonly<Record<string, unknown>>>(
      (value) => typeof value === "object" && value !== null && !Array.isArray(value),
    ),
  }),
  /** Step of an update in which the trainer itself gives the engine weights, or compares them. */
  v.object({
    kind: v.literal("update"),
    step: v.picklist([
      "connect",
      "start",
      "start_draft",
      "part",
      "finish",
      "disconnect",
      "compare",
    ]),
    body: contents,
  }),
  /**
   * Free memory: the KV at level 1, the weights as well at level 2; level 0 frees nothing. `mode`: what becomes of
   * requests that the engine still runs; null: as the engine likes.
   */
  v.object({
    kind: v.literal("sleep"),
    level: v.picklist([0, 1, 2]),
    mode: v.nullable(v.picklist(["abort", "wait", "keep"])),
  }),
  /** Take memory again. `tags`: parts of it; none: all. */
  v.object({
    kind: v.literal("wake"),
    tags: v.pipe(v.array(text), v.maxLength(LIST_MAX), v.readonly()),
  }),
  /**
   * Generate a few tokens with the weights in use, greedily and outside every cache and count; the status is 200 if
   * their logprobs are finite. Its body may hold `tokens` and `logprobs`, by which engines are compared. An engine that
   * sleeps may generate nothing; it answers `{"asleep": true}` then.
   * `adapter` null: the model itself.
   */
  v.object({ kind: v.literal("canary"), adapter: v.nullable(text) }),
  v.object({
    kind: v.literal("adapter"),
    change: v.picklist(["load", "unload"]),
    body: contents,
  }),
  v.object({
    kind: v.literal("ask"),
    about: v.picklist(["world_size", "is_asleep", "weights_version", "settings"]),
    settings,
  }),
  v.object({
    kind: v.literal("drop_cache"),
    cache: v.picklist(["prefix", "multimodal", "encoder"]),
    settings,
  }),
  /** Work of the engine's own tokenizer, chat template and parsers. */
  v.object({
    kind: v.literal("text"),
    form: v.picklist(["tokenize", "detokenize", "render", "derender"]),
    /** JSON as the engine gets it: a chat's numerals and the order of its keys are its client's. */
    body: v.string(),
  }),
  /** A method of all ranks of the engine. The answer lists what each returned. */
  v.object({ kind: v.literal("rpc"), body: contents }),
  /** A call of engines that a trainer has extended. */
  v.object({ kind: v.literal("extension"), name: text, body: contents }),
]);

export type EngineOperation = v.InferOutput<typeof OPERATION>;

/** The name of an operation in messages: "load", "update_weights", "ask_world_size". */
export function operationName(operation: EngineOperation): string {
  switch (operation.kind) {
    case "update":
      return operation.step === "part" ? "update_weights" : `${operation.step}_weight_update`;
    case "adapter":
      return `adapter_${operation.change}`;
    case "ask":
      return `ask_${operation.about}`;
    case "drop_cache":
      return `drop_cache_${operation.cache}`;
    case "text":
      return operation.form;
    case "extension":
      return operation.name;
    default:
      return operation.kind;
  }
}

/** `status` as in HTTP; 404: the engine cannot do it; 502, 503: it is opened again. `body`: JSON. */
export interface ControlAnswer {
  readonly status: number;
  readonly body: unknown;
}
