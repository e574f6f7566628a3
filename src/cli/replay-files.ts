// Opens the files that `foretoken replay` reads: responses as JSON lines, or the trace format, each
// plain or gzipped. The file name determines the format; src/tools/replay checks the content.

import { createReadStream } from "node:fs";
import { pipeline, Readable } from "node:stream";
import { createGunzip } from "node:zlib";
import { AppError, fileProblem } from "../core/base/errors.ts";
import { readResponses } from "../tools/replay/read-responses.ts";
import { readTrace } from "../tools/replay/read-trace.ts";
import type { Chunks, TraceGroup } from "../tools/replay/trace.ts";

/** Reads `path` from the start. Throws AppError `usage`, `invalid_json` or `invalid_field`. */
export function readGroups(path: string): AsyncIterable<TraceGroup> {
  const chunks = readChunks(path);
  const name = plainName(path);
  if (name.endsWith(".jsonl")) return readResponses(path, chunks);
  if (name.endsWith(".json")) return readTrace(path, chunks);
  const kinds = ".jsonl (responses) or .json (a trace), each with or without .gz";
  throw new AppError("usage", `${path}: its name must end with ${kinds}`);
}

function plainName(path: string): string {
  return path.endsWith(".gz") ? path.slice(0, -".gz".length) : path;
}

async function* readChunks(path: string): Chunks {
  const file = createReadStream(path);
  const bytes = path.endsWith(".gz") ? pipeline(file, createGunzip(), ignore) : file;
  try {
    for await (const chunk of Readable.from(bytes)) yield chunk as Uint8Array;
  } catch (cause) {
    throw new AppError("usage", `cannot read ${path}: ${fileProblem(cause)}`, { cause });
  } finally {
    file.destroy();
    bytes.destroy();
  }
}

/** The reader of the last stream meets the error; it needs no second report. */
function ignore(): void {}
