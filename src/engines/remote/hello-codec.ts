// The first message of each side to fields and back, by proto/link.proto: who the peers are, what the worker can do, and
// what each side takes.

import type { SamplingSupport, WorkerCapacity } from "../../core/rollout/worker.ts";
import { type Fields, InvalidMessage } from "../../proto/checked.ts";
import { count, epochOf, listOf, messageOf, textOf, weightsOf } from "./fields.ts";
import { ID_BYTES_MAX, NAME_CHARS_MAX, SIDECAR_CHARS_MAX } from "./limits.ts";
import type { Hello, HostLimits, Welcome } from "./message.ts";
import type { SupportTable } from "./support.ts";

/** In the order of the schema's enum, from 1. */
const SUPPORT_KINDS = ["divided", "whole", "refused"] as const;
const SUPPORTS_MAX = 256;
const UINT_MAX = 0xffffffff;

export function helloOf(body: Fields): Hello {
  return {
    kind: "hello",
    protocolVersion: count(body, "protocolVersion", { max: UINT_MAX }),
    token: textOf(body, "token", NAME_CHARS_MAX),
    messageBytesMax: count(body, "messageBytesMax", { max: UINT_MAX }),
    kvBytesMax: count(body, "kvBytesMax", { max: Number.MAX_SAFE_INTEGER }),
    sidecarId: textOf(body, "sidecarId", ID_BYTES_MAX),
    sidecarName: textOf(body, "sidecarName", SIDECAR_CHARS_MAX),
  };
}

export function welcomeFields(welcome: Welcome): object {
  const supports = [...welcome.supports].map(([feature, support]) => ({
    feature,
    ...support,
    kind: SUPPORT_KINDS.indexOf(support.kind) + 1,
  }));
  return { ...welcome, supports, weights: welcome.weights ?? "" };
}

export function welcomeOf(body: Fields): Welcome {
  return {
    kind: "welcome",
    protocolVersion: count(body, "protocolVersion", { max: UINT_MAX }),
    hostRun: textOf(body, "hostRun", ID_BYTES_MAX),
    epoch: epochOf(body),
    modelId: textOf(body, "modelId", NAME_CHARS_MAX),
    vocabularySize: count(body, "vocabularySize", { min: 1 }),
    workerName: textOf(body, "workerName", NAME_CHARS_MAX),
    capacity: capacityOf(messageOf(body, "capacity")),
    supports: supportsOf(body),
    limits: limitsOf(messageOf(body, "limits")),
    weights: weightsOf(body),
  };
}

function capacityOf(fields: Fields): WorkerCapacity {
  return {
    slots: count(fields, "slots", { min: 1 }),
    kvTokens: count(fields, "kvTokens", { min: 1, max: Number.MAX_SAFE_INTEGER }),
    contextTokens: count(fields, "contextTokens", { min: 1 }),
    kvBytesPerToken: count(fields, "kvBytesPerToken", { max: UINT_MAX }),
  };
}

function supportsOf(body: Fields): SupportTable {
  const table = new Map<string, SamplingSupport>();
  for (const fields of listOf(body, "supports", SUPPORTS_MAX)) {
    const kind = SUPPORT_KINDS[count(fields, "kind") - 1];
    if (kind === undefined) throw new InvalidMessage(`kind is ${fields.kind}`);
    const field = textOf(fields, "field", NAME_CHARS_MAX);
    const reason = textOf(fields, "reason", NAME_CHARS_MAX);
    const support = kind === "refused" ? { kind, field, reason } : { kind };
    table.set(textOf(fields, "feature", NAME_CHARS_MAX), support);
  }
  return table;
}

function limitsOf(fields: Fields): HostLimits {
  return {
    messageBytesMax: count(fields, "messageBytesMax", { max: UINT_MAX }),
    kvBytesMax: count(fields, "kvBytesMax", { max: Number.MAX_SAFE_INTEGER }),
    requestsMax: count(fields, "requestsMax", { min: 1, max: UINT_MAX }),
  };
}
