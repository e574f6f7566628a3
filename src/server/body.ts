// A request's body as it was meant: read up to the server's limit and unpacked up to the same limit, so that
// neither a long body nor a small one that unpacks to a long one takes more memory than that.

import { promisify } from "node:util";
import { brotliDecompress, gunzip, inflate, zstdDecompress } from "node:zlib";
import { AppError } from "../base/errors.ts";

type Unpack = (packed: Uint8Array, options: { maxOutputLength: number }) => Promise<Uint8Array>;

/** By the names of RFC 9110, section 8.4.1. */
const UNPACKERS: Readonly<Record<string, Unpack>> = {
  gzip: promisify(gunzip),
  "x-gzip": promisify(gunzip),
  deflate: promisify(inflate),
  br: promisify(brotliDecompress),
  zstd: promisify(zstdDecompress),
};

/** @throws AppError payload_too_large, unsupported_encoding, invalid_json (it does not unpack). */
export async function readBody(request: Request, bytesMax: number): Promise<Uint8Array> {
  const encoding = request.headers.get("content-encoding")?.trim().toLowerCase() ?? "identity";
  const unpack = UNPACKERS[encoding];
  if (unpack === undefined && encoding !== "identity") {
    const known = Object.keys(UNPACKERS).join(", ");
    const message = `the body's content-encoding is ${encoding}, not one of ${known}`;
    throw new AppError("unsupported_encoding", message);
  }
  const bytes = await collect(request, bytesMax);
  if (unpack === undefined || bytes.length === 0) return bytes;
  try {
    return await unpack(bytes, { maxOutputLength: bytesMax });
  } catch (cause) {
    const code = cause instanceof Error && "code" in cause ? cause.code : null;
    if (code === "ERR_BUFFER_TOO_LARGE") throw tooLarge(`unpacks to more than`, bytesMax);
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new AppError("invalid_json", `the body is not ${encoding}: ${reason}`, { cause });
  }
}

async function collect(request: Request, bytesMax: number): Promise<Uint8Array> {
  const said = request.headers.get("content-length");
  if (said !== null) {
    if (Number(said) > bytesMax) throw tooLarge(`has ${said} bytes, beyond`, bytesMax);
    return await request.bytes();
  }
  const parts: Uint8Array[] = [];
  let length = 0;
  for await (const part of request.body ?? []) {
    length += part.length;
    if (length > bytesMax) throw tooLarge("has more than", bytesMax);
    parts.push(part);
  }
  return Buffer.concat(parts, length);
}

function tooLarge(problem: string, bytesMax: number): AppError {
  const message = `the body ${problem} the server's ${bytesMax} bytes (--max-body-mb)`;
  return new AppError("payload_too_large", message);
}
