// The child process that reads weights for a serving process: if it hangs on a file system, or a damaged file
// crashes it, nothing else is lost. It writes the weights to the memory file that it inherited, in GGUF format: a GGUF file is
// copied, safetensors are converted. Then it tests them: it loads the file, encodes and decodes text, and generates tokens.
// weights-reader.ts starts it through main.ts; each line of its output is a ReadReport.

import {
  type BigIntStats,
  closeSync,
  fstatSync,
  ftruncateSync,
  readdirSync,
  readSync,
  statSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import { AppError, type ErrorCode, errorText, fileProblem } from "../../core/base/errors.ts";
import { generateWith } from "./canary.ts";
import { convertWeights, keptRanges } from "./checkpoint.ts";
import { copyRange, openToRead, pathOf, unreadable } from "./files.ts";
import { readGgufHead, weightsIdOf } from "./gguf.ts";
import { endWithParent } from "./libc.ts";
import { loadBackend, speakUp } from "./native.ts";
import { LlamaTokenizer } from "./tokenizer.ts";
import { LlamaWeights } from "./weights.ts";
import {
  FORM,
  type ReadReport,
  type ReadRequest,
  type ReadStage,
  TARGET,
} from "./weights-reader.ts";

const STANDARD_OUTPUT = 1;
/** Interval between two reports of a stage. */
const REPORT_MS = 1000;

function report(line: ReadReport): void {
  writeSync(STANDARD_OUTPUT, `${JSON.stringify(line)}\n`);
}

let reportedMs = 0;

function begin(stage: ReadStage): void {
  reportedMs = performance.now();
  report({ stage });
}

function progress(stage: ReadStage): void {
  if (performance.now() - reportedMs >= REPORT_MS) begin(stage);
}

function read({ path, deterministic, isFirst }: ReadRequest): void {
  begin("reading");
  const form = isFirst ? null : FORM;
  importWeights({ path, target: TARGET, form, progress: () => progress("reading") });
  begin("loading");
  loadBackend({ deterministic });
  speakUp();
  const file = pathOf(TARGET);
  if (isFirst) checkTokenizer(file, path);
  checkWeights(file, path);
  begin("hashing");
  if (isFirst) writeForm(path);
  report({ id: weightsIdOf(file, path, () => progress("hashing")) });
}

/** Runs the child process. `request`: a ReadRequest as JSON. */
export function runWeightsChild(request: string): void {
  endWithParent();
  try {
    read(JSON.parse(request) as ReadRequest);
  } catch (error) {
    report({ code: codeOf(error), message: errorText(error) });
  }
}

function codeOf(error: unknown): ErrorCode {
  if (error instanceof AppError) return error.code;
  // The converted weights have no room on this machine, and the given ones are not to blame.
  const { syscall } = Object(error) as NodeJS.ErrnoException;
  return syscall !== undefined && WRITES.includes(syscall) ? "worker_failed" : "model_unreadable";
}

const WRITES: readonly string[] = ["write", "pwrite", "ftruncate"];

/** Tokens decoded in one text: the cost grows faster than the length. */
const TEXT_TOKENS = 4096;

/** Every byte that can be in a text, and characters of two to four bytes. */
const TEXT_SAMPLE = [
  ...Array.from({ length: 0x800 }, (_, code) => String.fromCodePoint(code)),
  "\u{20ac}\u{4e2d}\u{6587}\u{ffff}\u{1f600}\u{10ffff} a word, 1234 and\n\ttwo  blanks",
].join("");

/** Tests that an engine can serve with the weights. @throws AppError model_unreadable: it cannot. */
function checkWeights(path: string, name: string): void {
  const model = LlamaWeights.load(path, { name, isTrial: true });
  try {
    generateWith(model);
  } finally {
    model.free();
  }
}

/** Tests the vocabulary and the chat template. @throws AppError model_unreadable: one cannot be used. */
function checkTokenizer(path: string, name: string): void {
  const tokenizer = LlamaTokenizer.load(path, name);
  tokenizer.decode(tokenizer.encode(TEXT_SAMPLE, { addSpecial: true }));
  for (let from = 0; from < tokenizer.vocabularySize; from += TEXT_TOKENS) {
    const count = Math.min(TEXT_TOKENS, tokenizer.vocabularySize - from);
    const tokens = Int32Array.from({ length: count }, (_, i) => from + i);
    for (const token of tokens) tokenizer.isSpecial(token);
    tokenizer.encode(tokenizer.decode(tokens));
  }
  tokenizer.close();
}

interface ImportOptions {
  readonly path: string;
  /** Descriptor of the empty memory file to which the weights are written. */
  readonly target: number;
  /** Descriptor of the loaded model's form, which safetensors are converted to; null: no model is loaded yet. */
  readonly form: number | null;
  /** Called repeatedly while files are read. */
  readonly progress: () => void;
}

/** Reads each file once. @throws AppError model_unreadable, with what is wrong with the path, or that a file has changed meanwhile. */
export function importWeights(options: ImportOptions): void {
  const { path, form, target } = options;
  const before = fingerprint(path);
  if (statOf(path).isDirectory() || path.endsWith(".safetensors")) {
    if (form === null) throw notForStart(path);
    convertWeights({ ...options, base: pathOf(form), source: path, target: pathOf(target) });
  } else copyGguf(options);
  if (fingerprint(path) !== before) throw unreadable(path, "was changed while it was read");
}

/**
 * Writes the form of the weights: the head and the parts that a conversion copies. The file has their size, with holes, which
 * take no memory, in place of the other tensors.
 */
function writeForm(name: string): void {
  ftruncateSync(FORM, fstatSync(TARGET).size);
  const files = { from: TARGET, to: FORM, name };
  for (const range of keptRanges(readGgufHead(pathOf(TARGET), name))) copyRange(files, range);
}

function statOf(path: string): BigIntStats {
  try {
    return statSync(path, { bigint: true });
  } catch (cause) {
    throw unreadable(path, fileProblem(cause), cause);
  }
}

/** Inode, size and time of every file that may be read: it changes if one of them does. */
function fingerprint(path: string): string {
  const files = statOf(path).isDirectory()
    ? readdirSync(path)
        .filter((name) => /\.(safetensors|json)$/.test(name))
        .sort()
        .map((name) => join(path, name))
    : [path];
  return files
    .map((file) => {
      const stat = statOf(file);
      // Reading a FIFO or a device may block for ever.
      if (!stat.isFile()) throw unreadable(file, "is no regular file");
      return `${file} ${stat.ino} ${stat.size} ${stat.mtimeNs}`;
    })
    .join("\n");
}

/** The error for a path that is no GGUF file, with which engines must begin. */
function notForStart(path: string): AppError {
  const names = statOf(path).isDirectory() ? readdirSync(path) : [];
  const gguf = names.filter((name) => name.endsWith(".gguf")).sort();
  const [file] = gguf;
  const give = file && `give ${join(path, file)}`;
  const fix = give ?? "convert a checkpoint with convert_hf_to_gguf.py of llama.cpp";
  return unreadable(path, `an embedded engine begins with a GGUF file, which this is not: ${fix}`);
}

/** Gives the commonest mistakes a plain message; llama.cpp judges everything after the magic number. */
function copyGguf({ path, target, progress }: ImportOptions): void {
  const from = openToRead(path);
  try {
    const { size: bytes } = fstatSync(from);
    if (bytes === 0) throw unreadable(path, "is empty");
    const magic = Buffer.alloc(4);
    readSync(from, magic, 0, magic.length, 0);
    if (magic.toString("latin1") !== "GGUF") throw unreadable(path, "not a GGUF file");
    copyRange({ from, to: target, name: path }, { offset: 0, bytes }, progress);
  } finally {
    closeSync(from);
  }
}
