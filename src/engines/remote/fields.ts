// Reads the fields of decoded protobuf and checks each: an empty frame, and one that means something
// else, are valid protobuf. Errors are returned as a value of `Decoded`, never thrown.

import protobuf from "protobufjs";
import schema from "../../../proto/link.proto" with { type: "text" };
import { assert } from "../../core/base/assert.ts";
import {
  type GroupId,
  groupId,
  type RequestId,
  requestId,
  type WeightEpoch,
  type WeightsId,
  weightEpoch,
  weightsId,
} from "../../core/base/ids.ts";
import { parseJson } from "../../core/base/json.ts";
import { type Fields, InvalidMessage } from "../../proto/checked.ts";
import { BARRIER_ID, INT_MAX, JSON_CHARS_MAX, TOKEN_BYTES } from "./limits.ts";

const { root } = protobuf.parse(schema);

/** Words are sent in their memory layout; every host of Bun is little-endian. */
assert(new Uint8Array(Int32Array.of(1).buffer)[0] === 1, "the host is little-endian");

const WEIGHTS_ID = /^[\w.-]{1,64}$/;

export function typeOf(name: string): protobuf.Type {
  return root.lookupType(`foretoken.link.v1.${name}`);
}

/** The member of the `oneof body` that is set, by its name. */
export function bodyOf(fields: Fields): { name: string; body: Fields } {
  const name = fields.body;
  if (typeof name !== "string") throw new InvalidMessage("there is no body");
  return { name, body: fields[name] as Fields };
}

export function messageOf(fields: Fields, name: string): Fields {
  const value = optionalOf(fields, name);
  if (value === null) throw new InvalidMessage(`${name} is missing`);
  return value;
}

export function optionalOf(fields: Fields, name: string): Fields | null {
  return (fields[name] as Fields | null | undefined) ?? null;
}

export function listOf(fields: Fields, name: string, max: number): readonly Fields[] {
  const list = fields[name] as readonly Fields[];
  if (list.length > max) throw new InvalidMessage(`${name} holds ${list.length}, above ${max}`);
  return list;
}

/** A whole number; 64-bit fields arrive as objects. */
export function count(
  fields: Fields,
  name: string,
  { min = 0, max = INT_MAX }: { min?: number; max?: number } = {},
): number {
  const value = plainNumber(fields[name]);
  if (Number.isSafeInteger(value) && value >= min && value <= max) return value;
  throw new InvalidMessage(`${name} is ${value}, not in [${min}, ${max}]`);
}

export function counts(
  fields: Fields,
  name: string,
  options: { listMax: number; max?: number },
): number[] {
  const list = fields[name] as readonly number[];
  if (list.length > options.listMax) {
    throw new InvalidMessage(`${name} holds ${list.length}, above ${options.listMax}`);
  }
  const { max = INT_MAX } = options;
  for (const value of list) {
    if (value > max) throw new InvalidMessage(`${name} holds ${value}, above ${max}`);
  }
  return [...list];
}

export function real(
  fields: Fields,
  name: string,
  { min = -Number.MAX_VALUE, max = Number.MAX_VALUE }: { min?: number; max?: number } = {},
): number {
  const value = fields[name] as number;
  if (value >= min && value <= max) return value;
  throw new InvalidMessage(`${name} is ${value}, not in [${min}, ${max}]`);
}

/** Any number of the field's type, in or out of range. */
export function anyNumber(fields: Fields, name: string): number {
  return plainNumber(fields[name]);
}

export function textOf(fields: Fields, name: string, charsMax: number): string {
  const value = fields[name] as string;
  if (value.length <= charsMax) return value;
  throw new InvalidMessage(`${name} has ${value.length} characters, above ${charsMax}`);
}

/** The name of a host's weights; null: unknown. */
export function weightsOf(fields: Fields): WeightsId | null {
  const name = fields.weights as string;
  if (name === "") return null;
  if (WEIGHTS_ID.test(name)) return weightsId(name);
  throw new InvalidMessage("weights is no name of weights");
}

export function jsonOf(fields: Fields, name: string): unknown {
  const text = textOf(fields, name, JSON_CHARS_MAX);
  try {
    return parseJson(text);
  } catch {
    throw new InvalidMessage(`${name} is not JSON`);
  }
}

export function epochOf(fields: Fields, name = "epoch"): WeightEpoch {
  return weightEpoch(count(fields, name, { max: 0xffffffff }));
}

export function requestIdOf(fields: Fields): RequestId {
  return requestId(count(fields, "requestId", { max: BARRIER_ID - 1 }));
}

/** Its length is the host's to judge: a name that is too long is one request's fault, and no broken frame. */
export function groupIdOf(fields: Fields): GroupId {
  const id = textOf(fields, "groupId", JSON_CHARS_MAX);
  if (id === "") throw new InvalidMessage("groupId is empty");
  return groupId(id);
}

/** Of an array, without a copy. */
export function toBytes(words: Int32Array | Float32Array): Uint8Array {
  return new Uint8Array(words.buffer, words.byteOffset, words.byteLength);
}

/** A copy: the frame's bytes need not be aligned, and belong to the socket. */
export function wordsOf(fields: Fields, name: string): Int32Array<ArrayBuffer> {
  return new Int32Array(copyOf(fields, name));
}

export function floatsOf(fields: Fields, name: string): Float32Array<ArrayBuffer> {
  return new Float32Array(copyOf(fields, name));
}

/** Token ids: none is below 0. */
export function tokensOf(fields: Fields, name: string): Int32Array<ArrayBuffer> {
  const tokens = wordsOf(fields, name);
  for (let i = 0; i < tokens.length; i += 1) {
    if ((tokens[i] ?? 0) < 0) throw new InvalidMessage(`${name}[${i}] is ${tokens[i]}, below 0`);
  }
  return tokens;
}

/** A view of the frame's bytes, valid as long as those are. */
export function viewOf(fields: Fields, name: string): Uint8Array {
  const bytes = fields[name] as Uint8Array;
  return new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

export function bytesOf(fields: Fields, name: string): ArrayBuffer {
  const bytes = fields[name] as Uint8Array;
  const copy = new Uint8Array(bytes.length);
  copy.set(bytes);
  return copy.buffer;
}

function copyOf(fields: Fields, name: string): ArrayBuffer {
  const { length } = fields[name] as Uint8Array;
  if (length % TOKEN_BYTES !== 0) throw new InvalidMessage(`${name} ends within a word`);
  return bytesOf(fields, name);
}

function plainNumber(value: unknown): number {
  if (typeof value === "number") return value;
  return (value as { toNumber(): number }).toNumber();
}
