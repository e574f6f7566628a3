// Messages of the sidecar to bytes and back, by proto/link.proto: commands and control requests. Never
// throws on what a peer sent.

import { requestId } from "../../core/base/ids.ts";
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
import { BARRIER_ID, INT_MAX, JSON_CHARS_MAX, NAME_CHARS_MAX, TTL_MS_MAX } from "./limits.ts";
import type { KvPart, SidecarMessage, WireCommand, WireKv, WirePrompt } from "./message.ts";

const messageType = typeOf("SidecarMessage");

const COMMANDS_MAX = 1_048_576;
const FORGET_MAX = 1_048_576;
/** Of stop tokens and of biases in one frame. */
const LIST_MAX = 262_144;
const UINT32_MAX = 0xffffffff;
const QUERY_MAX = 1024;

export function encodeSidecarMessage(message: SidecarMessage): Uint8Array {
  if (message.kind === "kv_part") return encodeAs(messageType, { kvPart: message.part });
  if (message.kind === "commands") {
    return encodeAs(messageType, { commands: { commands: message.commands.map(commandFields) } });
  }
  const { controlId, request } = message;
  const control = {
    controlId,
    isPost: request.method === "POST",
    path: request.path,
    query: request.query,
    body: JSON.stringify(request.body ?? null),
    nextEpoch: request.nextEpoch,
  };
  return encodeAs(messageType, { control });
}

export function decodeSidecarMessage(bytes: Uint8Array): Decoded<SidecarMessage> {
  return decodeAs(messageType, bytes, (fields): SidecarMessage => {
    const { name, body } = bodyOf(fields);
    if (name === "kvPart") return { kind: "kv_part", part: kvPartOf(body) };
    if (name === "commands") {
      return { kind: name, commands: listOf(body, "commands", COMMANDS_MAX).map(commandOf) };
    }
    const controlId = count(body, "controlId", { max: 0xffffffff });
    return { kind: "control", controlId, request: controlOf(body) };
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
      return { registerGroup: { ...command, prompt: promptFields(command.prompt) } };
    case "delta":
      return { delta: { ...command, tokens: toBytes(command.tokens) } };
    case "drop_group":
      return { dropGroup: command };
    case "advance":
      return { advance: command };
    case "forget":
      return { forget: command };
  }
}

function runFields(command: Extract<WireCommand, { kind: "run" }>): object {
  const { request, prompt, output, kv } = command;
  const { sampling, draw } = request;
  return {
    ...command,
    ...request,
    prompt: promptFields(prompt),
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

function promptFields({ promptId, tokens }: WirePrompt): object {
  return tokens === null ? { promptId } : { promptId, isNew: true, tokens: toBytes(tokens) };
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
      return { kind: "register_group", groupId: groupIdOf(body), prompt: promptOf(body), ttlMs };
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
    case "forget": {
      const promptIds = counts(body, "promptIds", { listMax: FORGET_MAX });
      const ids = counts(body, "requestIds", { listMax: FORGET_MAX, max: BARRIER_ID - 1 });
      return { kind: name, promptIds, requestIds: ids.map(requestId) };
    }
    default:
      throw new InvalidMessage("there is no body");
  }
}

function runOf(body: Fields): WireCommand {
  const output = wordsOf(body, "output");
  const draft = optionalOf(body, "draft");
  return {
    kind: "run",
    run: count(body, "run", { min: 1 }),
    request: requestOf(body),
    prompt: promptOf(body),
    outputFrom: count(body, "outputFrom", { max: INT_MAX - output.length }),
    output,
    chunkTokens: anyNumber(body, "chunkTokens"),
    priority: body.isHighPriority === true ? "high" : "low",
    kv: kvOf(body),
    draft:
      draft === null
        ? null
        : { groupId: groupIdOf(draft), sampleIndex: count(draft, "sampleIndex") },
  };
}

function requestOf(body: Fields): Omit<RequestSpec, "prompt"> {
  return {
    requestId: requestIdOf(body),
    groupId: groupIdOf(body),
    sampleIndex: count(body, "sampleIndex"),
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

function promptOf(body: Fields): WirePrompt {
  const fields = messageOf(body, "prompt");
  const promptId = count(fields, "promptId");
  const tokens = wordsOf(fields, "tokens");
  if (fields.isNew === true) return { promptId, tokens };
  if (tokens.length > 0) throw new InvalidMessage("a prompt that is not new has tokens");
  return { promptId, tokens: null };
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
