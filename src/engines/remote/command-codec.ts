// Messages of the sidecar to bytes and back, by proto/link.proto. Never throws on what a peer sent.

import type { LogitShaping, RequestSpec, SamplingParams } from "../../core/request/request.ts";
import type { ControlRequest } from "../../core/rollout/worker.ts";
import {
  type Decoded,
  decodeAs,
  encodeAs,
  type Fields,
  InvalidMessage,
} from "../../proto/checked.ts";
import {
  anyNumber,
  bodyOf,
  bytesOf,
  count,
  counts,
  epochOf,
  groupIdOf,
  jsonOf,
  listOf,
  messageOf,
  optionalOf,
  requestIdOf,
  textOf,
  toBytes,
  tokensOf,
  typeOf,
  viewOf,
  wordsOf,
} from "./fields.ts";
import { helloOf } from "./hello-codec.ts";
import { INT_MAX, JSON_CHARS_MAX, NAME_CHARS_MAX, TTL_MS_MAX } from "./limits.ts";
import type { KvPart, SidecarMessage, WireCommand, WireKv } from "./message.ts";

const messageType = typeOf("SidecarMessage");

const COMMANDS_MAX = 1_048_576;
/** Of stop tokens and of biases in one frame. */
const LIST_MAX = 262_144;
const UINT32_MAX = 0xffffffff;
const QUERY_MAX = 1024;

export function encodeSidecarMessage(message: SidecarMessage): Uint8Array {
  switch (message.kind) {
    case "hello":
      return encodeAs(messageType, { hello: message });
    case "heartbeat":
      return encodeAs(messageType, { heartbeat: {} });
    case "bye":
      return encodeAs(messageType, { bye: {} });
    case "kv_part":
      return encodeAs(messageType, { kvPart: message.part });
    case "commands":
      return encodeAs(messageType, { commands: { commands: message.commands.map(commandFields) } });
    case "control":
      return encodeAs(messageType, { control: controlFields(message.controlId, message.request) });
    case "canary":
      return encodeAs(messageType, { canary: message });
  }
}

function controlFields(controlId: number, request: ControlRequest): object {
  const { method, path, query, nextEpoch } = request;
  const body = JSON.stringify(request.body ?? null);
  return { controlId, isPost: method === "POST", path, query, body, nextEpoch };
}

export function decodeSidecarMessage(bytes: Uint8Array): Decoded<SidecarMessage> {
  return decodeAs(messageType, bytes, (fields): SidecarMessage => {
    const { name, body } = bodyOf(fields);
    switch (name) {
      case "hello":
        return helloOf(body);
      case "heartbeat":
      case "bye":
        return { kind: name };
      case "kvPart":
        return { kind: "kv_part", part: kvPartOf(body) };
      case "commands":
        return { kind: name, commands: listOf(body, "commands", COMMANDS_MAX).map(commandOf) };
      case "canary": {
        const controlId = count(body, "controlId", { max: UINT32_MAX });
        const isNamed = (body.adapter ?? "") !== "";
        return {
          kind: name,
          controlId,
          adapter: isNamed ? textOf(body, "adapter", NAME_CHARS_MAX) : null,
        };
      }
      default: {
        const controlId = count(body, "controlId", { max: UINT32_MAX });
        return { kind: "control", controlId, request: controlOf(body) };
      }
    }
  });
}

/** `kv` alone, as it travels; also of the host's `exported`. */
export function kvFields(kv: WireKv | null): object | null {
  return kv === null || "streamedBytes" in kv
    ? kv
    : { tokens: kv.tokens, bytes: new Uint8Array(kv.bytes) };
}

export function kvOf(fields: Fields): WireKv | null {
  const kv = optionalOf(fields, "kv");
  if (kv === null) return null;
  const tokens = count(kv, "tokens");
  const bytes = bytesOf(kv, "bytes");
  const streamedBytes = count(kv, "streamedBytes", { max: Number.MAX_SAFE_INTEGER });
  if (streamedBytes === 0) return { tokens, bytes };
  if (bytes.byteLength > 0) throw new InvalidMessage("kv has bytes and streamed_bytes");
  return { tokens, streamedBytes };
}

/** Its bytes are a view of the message's. */
export function kvPartOf(body: Fields): KvPart {
  const bytes = viewOf(body, "bytes");
  const total = count(body, "total", { min: 1, max: Number.MAX_SAFE_INTEGER });
  return { offset: count(body, "offset", { max: total }), total, bytes };
}

function commandFields(command: WireCommand): object {
  switch (command.kind) {
    case "run":
      return { run: runFields(command) };
    case "export":
      return { export: command };
    case "release":
      return { release: command };
    case "register_group":
      return { registerGroup: { ...command, prompt: toBytes(command.prompt) } };
    case "delta":
      return { delta: { ...command, tokens: toBytes(command.tokens) } };
    case "drop_group":
      return { dropGroup: command };
    case "advance":
      return { advance: command };
  }
}

function runFields(command: Extract<WireCommand, { kind: "run" }>): object {
  const { request, output, kv } = command;
  const { sampling, draw } = request;
  return {
    ...command,
    ...request,
    prompt: toBytes(request.prompt),
    sampling: {
      ...sampling,
      engineFields: sampling.engineFields === null ? "" : JSON.stringify(sampling.engineFields),
    },
    drawHi: draw.hi,
    drawLo: draw.lo,
    output: toBytes(output),
    isHighPriority: command.priority === "high",
    kv: kvFields(kv),
  };
}

function commandOf(fields: Fields): WireCommand {
  const { name, body } = bodyOf(fields);
  switch (name) {
    case "run":
      return runOf(body);
    case "export":
    case "release":
      return { kind: name, requestId: requestIdOf(body) };
    case "registerGroup": {
      const ttlMs = count(body, "ttlMs", { max: TTL_MS_MAX });
      return {
        kind: "register_group",
        groupId: groupIdOf(body),
        prompt: wordsOf(body, "prompt"),
        ttlMs,
      };
    }
    case "delta": {
      const tokens = tokensOf(body, "tokens");
      const offset = count(body, "offset", { max: INT_MAX - tokens.length });
      const sampleIndex = count(body, "sampleIndex");
      return { kind: name, groupId: groupIdOf(body), sampleIndex, offset, tokens };
    }
    case "dropGroup":
      return { kind: "drop_group", groupId: groupIdOf(body) };
    case "advance":
      return { kind: name, epoch: epochOf(body) };
    default:
      throw new InvalidMessage("there is no body");
  }
}

function runOf(body: Fields): WireCommand {
  const draft = optionalOf(body, "draft");
  return {
    kind: "run",
    run: count(body, "run", { min: 1 }),
    request: requestOf(body),
    output: wordsOf(body, "output"),
    chunkTokens: anyNumber(body, "chunkTokens"),
    priority: body.isHighPriority === true ? "high" : "low",
    kv: kvOf(body),
    draft:
      draft === null
        ? null
        : { groupId: groupIdOf(draft), sampleIndex: count(draft, "sampleIndex") },
  };
}

function requestOf(body: Fields): RequestSpec {
  return {
    requestId: requestIdOf(body),
    groupId: groupIdOf(body),
    sampleIndex: count(body, "sampleIndex"),
    prompt: wordsOf(body, "prompt"),
    sampling: samplingOf(messageOf(body, "sampling")),
    draw: {
      hi: count(body, "drawHi", { max: 0xffffffff }),
      lo: count(body, "drawLo", { max: 0xffffffff }),
    },
    divisible: body.divisible === true,
  };
}

/** As they are: HostSession judges them, for a parameter out of range is one request's fault, and no broken frame. */
function samplingOf(fields: Fields): SamplingParams {
  const shaping = optionalOf(fields, "shaping");
  return {
    temperature: anyNumber(fields, "temperature"),
    seed: anyNumber(fields, "seed"),
    tokensMax: anyNumber(fields, "tokensMax"),
    stopTokenIds: counts(fields, "stopTokenIds", { listMax: LIST_MAX, max: UINT32_MAX }),
    shaping: shaping === null ? null : shapingOf(shaping),
    topLogprobs: anyNumber(fields, "topLogprobs"),
    engineFields: engineFieldsOf(fields),
  };
}

function shapingOf(fields: Fields): LogitShaping {
  return {
    tokensMin: anyNumber(fields, "tokensMin"),
    topK: anyNumber(fields, "topK"),
    topP: anyNumber(fields, "topP"),
    minP: anyNumber(fields, "minP"),
    repetitionPenalty: anyNumber(fields, "repetitionPenalty"),
    presencePenalty: anyNumber(fields, "presencePenalty"),
    frequencyPenalty: anyNumber(fields, "frequencyPenalty"),
    logitBias: listOf(fields, "logitBias", LIST_MAX).map((entry) => ({
      token: anyNumber(entry, "token"),
      bias: anyNumber(entry, "bias"),
    })),
  };
}

function engineFieldsOf(fields: Fields): Record<string, unknown> | null {
  if (fields.engineFields === "") return null;
  const value = jsonOf(fields, "engineFields");
  if (typeof value === "object" && value !== null && !Array.isArray(value)) {
    return value as Record<string, unknown>;
  }
  throw new InvalidMessage("engineFields is not an object");
}

function controlOf(body: Fields): ControlRequest {
  const entries = Object.entries(body.query as Record<string, string>);
  if (entries.length > QUERY_MAX) {
    throw new InvalidMessage(`query holds ${entries.length}, above ${QUERY_MAX}`);
  }
  const chars = entries.reduce((sum, [key, value]) => sum + key.length + value.length, 0);
  if (chars > JSON_CHARS_MAX) throw new InvalidMessage("query is too long");
  const path = textOf(body, "path", NAME_CHARS_MAX);
  if (!path.startsWith("/")) throw new InvalidMessage("path does not begin with a slash");
  return {
    method: body.isPost === true ? "POST" : "GET",
    path,
    query: Object.fromEntries(entries),
    body: jsonOf(body, "body"),
    nextEpoch: epochOf(body, "nextEpoch"),
  };
}
