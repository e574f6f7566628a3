// Reads the weights at a path into a memory file in GGUF format: a GGUF file is copied, safetensors are
// converted. Each file is read once, and refused if it changes meanwhile. It may block as long as the file
// system does, so only a child process calls it.

import {
  type BigIntStats,
  closeSync,
  fstatSync,
  ftruncateSync,
  openSync,
  readdirSync,
  readSync,
  statSync,
} from "node:fs";
import { join } from "node:path";
import { type AppError, fileProblem } from "../../core/base/errors.ts";
import { unreadable, writeFully } from "./files.ts";
import { readGgufHead } from "./gguf.ts";
import { pathOf } from "./memory-file.ts";
import { convertWeights, copyRange, keptRanges } from "./weights-conversion.ts";

export interface ImportOptions {
  readonly path: string;
  /** Descriptor of the empty memory file to which the weights are written. */
  readonly target: number;
  /** Descriptor of the loaded model's form, which safetensors are converted to; null: no model is loaded yet. */
  readonly form: number | null;
  /** Called repeatedly while files are read. */
  readonly progress: () => void;
}

/** Reads the weights. @throws AppError model_unreadable, with what is wrong with the path or the file. */
export function importWeights(options: ImportOptions): void {
  const { path, form } = options;
  const before = fingerprint(path);
  if (isCheckpoint(path)) {
    if (form === null) throw notForStart(path);
    const base = pathOf(form);
    convertWeights({ ...options, base, source: path, target: pathOf(options.target) });
  } else {
    copyGguf(options);
  }
  if (fingerprint(path) !== before) throw unreadable(path, "was changed while it was read");
}

/**
 * Writes the form of a GGUF file to the memory file `form`: the head and the parts that a conversion copies. It
 * has the same size, with holes, which take no memory, in place of the other tensors.
 */
export function writeForm(gguf: number, form: number, name: string): void {
  ftruncateSync(form, fstatSync(gguf).size);
  for (const range of keptRanges(readGgufHead(pathOf(gguf), name))) copyRange(gguf, form, range);
}

function statOf(path: string): BigIntStats {
  try {
    return statSync(path, { bigint: true });
  } catch (cause) {
    throw unreadable(path, fileProblem(cause), cause);
  }
}

function isCheckpoint(path: string): boolean {
  const stats = statOf(path);
  if (stats.isDirectory()) return true;
  checkKind(path, stats);
  return path.endsWith(".safetensors");
}

/** Refuses special files: reading one may block for ever. */
function checkKind(path: string, stats: BigIntStats): void {
  if (stats.isFile()) return;
  let kind = "a device";
  if (stats.isFIFO()) kind = "a FIFO";
  else if (stats.isSocket()) kind = "a socket";
  else if (stats.isDirectory()) kind = "a folder";
  throw unreadable(path, `is ${kind}, not a file`);
}

/** Inode, size and time of every file that may be read: it changes if one of them does. */
function fingerprint(path: string): string {
  const stats = statOf(path);
  const files = stats.isDirectory()
    ? readdirSync(path)
        .filter((name) => /\.(safetensors|json)$/.test(name))
        .sort()
        .map((name) => join(path, name))
    : [path];
  return files
    .map((file) => {
      const stat = statOf(file);
      checkKind(file, stat);
      return `${file} ${stat.ino} ${stat.size} ${stat.mtimeNs}`;
    })
    .join("\n");
}

/** The error for a path that is no GGUF file, with which engines must begin: what it is, and what to pass instead. */
function notForStart(path: string): AppError {
  const rule = "an embedded engine begins with a GGUF file";
  const convert = `${rule}: convert it (convert_hf_to_gguf.py of llama.cpp)`;
  if (!statOf(path).isDirectory()) return unreadable(path, `holds safetensors; ${convert}`);
  const names = readdirSync(path).sort();
  const gguf = names.filter((name) => name.endsWith(".gguf"));
  if (gguf[0] !== undefined) {
    const others = gguf.length > 1 ? `, one of ${gguf.length}` : "";
    return unreadable(path, `is a folder; give the file in it: ${join(path, gguf[0])}${others}`);
  }
  const isHuggingFace = names.some((name) => /^config\.json$|\.safetensors$/.test(name));
  if (isHuggingFace) return unreadable(path, `is a Hugging Face checkpoint; ${convert}`);
  return unreadable(path, `is a folder without a model; ${rule}`);
}

const PIECE_BYTES = 1 << 22;

function copyGguf({ path, target, progress }: ImportOptions): void {
  let source: number;
  try {
    source = openSync(path, "r");
  } catch (cause) {
    throw unreadable(path, fileProblem(cause), cause);
  }
  try {
    const buffer = new Uint8Array(PIECE_BYTES);
    for (let at = 0; ; ) {
      const read = readSync(source, buffer, 0, buffer.length, at);
      if (at === 0) checkMagic(path, buffer.subarray(0, read));
      if (read === 0) return;
      writeFully(target, buffer.subarray(0, read), at);
      at += read;
      progress();
    }
  } finally {
    closeSync(source);
  }
}

/** Gives the commonest mistakes a plain message; llama.cpp judges everything after the magic number. */
function checkMagic(path: string, head: Uint8Array): void {
  if (head.length === 0) throw unreadable(path, "is empty");
  if (Buffer.from(head.subarray(0, 4)).toString("latin1") !== "GGUF") {
    throw unreadable(path, "not a GGUF file");
  }
}
