// The child process that reads weights for a serving process: if it hangs on a file system, or a damaged file
// crashes it, nothing else is lost. It writes the weights to the memory file that it inherited, and tests them:
// it loads the file, encodes and decodes text, and generates tokens. weights-reader.ts starts it through
// main.ts; each line of its output is a ReadReport.

import { dlopen, ptr } from "bun:ffi";
import { writeSync } from "node:fs";
import { AppError, type ErrorCode, errorText } from "../../core/base/errors.ts";
import { nativeBytes } from "./c-bytes.ts";
import { generateWith } from "./canary.ts";
import { pathOf } from "./memory-file.ts";
import { type LlamaLibrary, loadBackend, openLibrary, speakUp } from "./native.ts";
import { LlamaTokenizer } from "./tokenizer.ts";
import { LlamaWeights } from "./weights.ts";
import { weightsIdOf } from "./weights-digest.ts";
import {
  FORM,
  type ReadReport,
  type ReadRequest,
  type ReadStage,
  TARGET,
} from "./weights-reader.ts";
import { importWeights, writeForm } from "./weights-source.ts";

const STANDARD_OUTPUT = 1;
/** Constants of Linux: prctl(2), setrlimit(2). */
const PR_SET_PDEATHSIG = 1;
const SIGKILL = 9;
const RLIMIT_CORE = 4;
/** Interval between two reports of a stage. */
const REPORT_MS = 1000;

/** Makes this process end with its parent, and leave no core file if a damaged model crashes it. */
function limitSelf(): void {
  const { prctl, setrlimit } = dlopen("libc.so.6", {
    prctl: { args: ["i32", "u64"], returns: "i32" },
    setrlimit: { args: ["i32", "ptr"], returns: "i32" },
  }).symbols;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setrlimit(RLIMIT_CORE, ptr(nativeBytes(16)));
}

function report(line: ReadReport): void {
  writeSync(STANDARD_OUTPUT, `${JSON.stringify(line)}\n`);
}

let reportedMs = 0;

function begin(stage: ReadStage): void {
  reportedMs = performance.now();
  report({ kind: "progress", stage });
}

function progress(stage: ReadStage): void {
  if (performance.now() - reportedMs >= REPORT_MS) begin(stage);
}

function read({ path, deterministic, isFirst }: ReadRequest): void {
  begin("reading");
  importWeights({
    path,
    target: TARGET,
    form: isFirst ? null : FORM,
    progress: () => progress("reading"),
  });
  begin("loading");
  const library = openLibrary();
  loadBackend(library, { deterministic });
  speakUp(library);
  const file = pathOf(TARGET);
  if (isFirst) checkTokenizer(library, file, path);
  checkWeights(library, file, path);
  begin("hashing");
  if (isFirst) writeForm(TARGET, FORM, path);
  const weights = weightsIdOf({
    path: file,
    name: path,
    progress: () => progress("hashing"),
  });
  report({ kind: "read", weights });
}

/** Runs the child process. `request`: a ReadRequest as JSON. */
export function runWeightsChild(request: string): void {
  limitSelf();
  try {
    read(JSON.parse(request) as ReadRequest);
  } catch (error) {
    report({ kind: "failed", code: codeOf(error), message: errorText(error) });
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
function checkWeights(library: LlamaLibrary, path: string, name: string): void {
  const model = LlamaWeights.load(library, path, { name, isTrial: true });
  try {
    generateWith(model);
  } finally {
    model.free();
  }
}

/** Tests the vocabulary and the chat template. @throws AppError model_unreadable: one cannot be used. */
function checkTokenizer(library: LlamaLibrary, path: string, name: string): void {
  const tokenizer = LlamaTokenizer.load(library, path, name);
  tokenizer.decode(tokenizer.encode(TEXT_SAMPLE, { addSpecial: true }));
  for (let from = 0; from < tokenizer.vocabularySize; from += TEXT_TOKENS) {
    const count = Math.min(TEXT_TOKENS, tokenizer.vocabularySize - from);
    const tokens = Int32Array.from({ length: count }, (_, i) => from + i);
    for (const token of tokens) tokenizer.isSpecial(token);
    tokenizer.encode(tokenizer.decode(tokens));
  }
  tokenizer.close();
}
