// Decodes protobuf messages whose fields are then checked one by one: an empty frame, or a frame of another schema, can be
// valid protobuf. Errors are returned as values, never thrown.

import type protobuf from "protobufjs";

export type Decoded<M> =
  | { readonly kind: "ok"; readonly message: M }
  /** The bytes are not protobuf of this schema. */
  | { readonly kind: "undecodable"; readonly problem: string }
  /** A field is missing or out of its range. */
  | { readonly kind: "invalid_message"; readonly problem: string };

/** A message as protobufjs decodes it: fields in camel case, defaults for absent ones. */
export type RawFields = Readonly<Record<string, unknown>>;

/** Thrown by the checks below and caught in `decodeAs`, nowhere else. */
export class InvalidMessage extends Error {}

export function encodeAs(type: protobuf.Type, fields: object): Uint8Array {
  return type.encode(fields as protobuf.Message).finish();
}

export function decodeAs<M>(
  type: protobuf.Type,
  bytes: Uint8Array,
  check: (fields: RawFields) => M,
): Decoded<M> {
  let fields: RawFields;
  try {
    fields = type.decode(bytes) as unknown as RawFields;
  } catch (error) {
    return { kind: "undecodable", problem: error instanceof Error ? error.message : "unreadable" };
  }
  try {
    return { kind: "ok", message: check(fields) };
  } catch (error) {
    if (!(error instanceof InvalidMessage)) throw error;
    return { kind: "invalid_message", problem: error.message };
  }
}
