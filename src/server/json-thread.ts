// The thread that reads large bodies: it names their bytes, packs their lists of numbers, and parses what is left if
// that is large, so that its errors are found here.

import { createHash, randomInt } from "node:crypto";
import { parseJson } from "../core/base/json.ts";
import { type PackedJson, packLists } from "../core/base/json-lists.ts";
import { jsonProblem } from "./json-problem.ts";

declare const self: Worker;

export interface ReadBody {
  /** Of the bytes, SHA-256. */
  readonly digest: string;
  readonly packed: PackedJson;
  /** Why it is not JSON, or refused, as far as that was looked for. */
  readonly problem: string | null;
}

const LARGE_BYTES = 256 * 1024;

/** Numbers up to it, and as many behind it as a body has lists, are exact in JSON. */
const MARK_MAX = 2 ** 47;

self.onmessage = ({ data: bytes }: MessageEvent<Uint8Array>) => {
  const digest = createHash("sha256").update(bytes).digest("hex");
  const packed = packLists(bytes, 2 ** 51 + randomInt(MARK_MAX));
  const { rest, spans, integers, doubles } = packed;
  const buffers = [rest.buffer, spans.buffer, integers.buffer, doubles.buffer];
  const problem = rest.length <= LARGE_BYTES ? null : problemOf(rest);
  self.postMessage({ digest, packed, problem } satisfies ReadBody, buffers);
};

function problemOf(rest: Uint8Array): string | null {
  try {
    parseJson(new TextDecoder("utf-8", { fatal: true }).decode(rest));
    return null;
  } catch (error) {
    return jsonProblem(error);
  }
}
