// Reads weights in a child process, so that a damaged or slow file cannot crash or block the serving process.
// The result is a memory file of this process with exactly the bytes that the child has tested, or an error
// that names the file.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { resolve } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { present } from "../../core/base/assert.ts";
import { AppError, type ErrorCode } from "../../core/base/errors.ts";
import type { WeightsId } from "../../core/base/ids.ts";
import { IS_COMPILED, WEIGHTS_CHILD } from "../../core/base/program.ts";
import { MemoryFile, pathOf, unreadable } from "./files.ts";

export interface ReadRequest {
  readonly path: string;
  /** Selects the kernels to test with: a damaged file may crash only one kind. */
  readonly deterministic: boolean;
  /** These are the weights that engines open with: their tokenizer is tested as well, and their form is kept. */
  readonly isFirst: boolean;
}

export type ReadStage = "reading" | "loading" | "hashing";

/** A line of the child's output: where it is, its result, or why there is none. */
export type ReadReport =
  | { readonly stage: ReadStage }
  | { readonly id: WeightsId }
  | { readonly code: ErrorCode; readonly message: string };

/** The memory files' descriptors in the child. */
export const TARGET = 3;
export const FORM = 4;

/**
 * Silence after which a child counts as hung. It reports every second while it reads; testing a model of
 * 40 GB on one core takes about 20 s.
 */
const SILENCE_MS_MAX: Readonly<Record<ReadStage, number>> = {
  reading: 30_000,
  loading: 120_000,
  hashing: 30_000,
};
/** How much of the child's standard error is kept, from its end: the last lines contain the reason. */
const NOISE_CHARACTERS_MAX = 16_384;

export interface ReadOptions extends ReadRequest {
  /** The memory file of the model's form: written if `isFirst`, else read. */
  readonly form: MemoryFile;
  /** Replaces the limits of all stages. */
  readonly silenceMsMax?: number;
}

/** Reads and tests weights into a GGUF file, which the caller closes. @throws AppError model_unreadable, with file and reason. */
export async function readWeights(
  options: ReadOptions,
): Promise<{ readonly file: MemoryFile; readonly id: WeightsId }> {
  const file = MemoryFile.create();
  try {
    return { file, id: await readInto(file, options) };
  } catch (error) {
    file.close();
    throw error;
  }
}

async function readInto(file: MemoryFile, options: ReadOptions): Promise<WeightsId> {
  const { deterministic, isFirst, form } = options;
  const path = resolve(options.path);
  const request: ReadRequest = { path, deterministic, isFirst };
  const [program = "", ...given] = PROGRAM;
  const child = spawn(program, [...given, WEIGHTS_CHILD, JSON.stringify(request)], {
    // Away from whatever settings of the runtime the user's folder holds.
    cwd: "/",
    stdio: ["ignore", "pipe", "pipe", file.descriptor, form.descriptor],
    // llama.cpp starts no debugger where it aborts.
    env: { ...process.env, GGML_NO_BACKTRACE: "1" },
  });
  let last: ReadReport = { stage: "reading" };
  let stage: ReadStage = "reading";
  const silent = Promise.withResolvers<never>();
  const patienceMs = () => options.silenceMsMax ?? SILENCE_MS_MAX[stage];
  const expire = () => {
    child.kill("SIGKILL");
    silent.reject(unreadable(path, `${stage} it made no progress for ${patienceMs() / 1000} s`));
  };
  let silence = setTimeout(expire, patienceMs());
  let noise = "";
  child.stderr?.setEncoding("utf8").on("data", (text: string) => {
    noise = (noise + text).slice(-NOISE_CHARACTERS_MAX);
  });
  const ended = async (): Promise<WeightsId> => {
    const closed = once(child, "close");
    for await (const line of createInterface({ input: present(child.stdout, "it is a pipe") })) {
      last = JSON.parse(line) as ReadReport;
      if ("stage" in last) stage = last.stage;
      clearTimeout(silence);
      silence = setTimeout(expire, patienceMs());
    }
    await closed;
    if ("id" in last && child.exitCode === 0) return last.id;
    const reason = reasonIn(noise.replaceAll(pathOf(TARGET), path));
    if ("code" in last) throw new AppError(last.code, `${last.message}${reason}`);
    const { signalCode, exitCode } = child;
    // The kernel's OOM killer sends SIGKILL; damage aborts.
    const cause = signalCode === "SIGKILL" ? "is there memory for it?" : "the file may be damaged";
    throw unreadable(
      path,
      `${stage} it ended with ${signalCode ?? `status ${exitCode}`}: ${cause}${reason}`,
    );
  };
  try {
    return await Promise.race([ended(), silent.promise]);
  } finally {
    clearTimeout(silence);
  }
}

/** Command line that starts this program again. */
const PROGRAM = IS_COMPILED
  ? [process.execPath]
  : [process.execPath, fileURLToPath(new URL("../../main.ts", import.meta.url))];

/** Patterns of messages of llama.cpp, C++ or the runtime that contain the reason. */
const REASONS = [
  /ggml_validate_row_data: (.+)[\s\S]*?(tensor .+ has invalid data)/,
  /^gguf_init\w*: (.+)/m,
  /error loading model: (.+)/,
  /([^\s/]+: GGML_ASSERT.+ failed)/,
  /what\(\): +(.+)/,
  /panic.*?: (.+)/,
];

/** The reason in the child's output, in brackets; empty: none. It may quote arbitrary bytes of a damaged file. */
function reasonIn(noise: string): string {
  for (const pattern of REASONS) {
    const reason = pattern.exec(noise)?.slice(1).join("; ");
    if (reason !== undefined) return ` (${reason.trim().replaceAll(/[^ -~]/g, "?")})`;
  }
  return "";
}
