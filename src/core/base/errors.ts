// Conditions a user or an operator can meet, each with a stable code. Bugs are assertions (assert.ts).
// The mapping from code to exit status and HTTP status happens once, at the edge.

export type ErrorCode =
  | "usage"
  | "invalid_config"
  | "invalid_json"
  | "invalid_field"
  | "context_length_exceeded"
  | "kv_budget_too_small"
  | "not_found"
  | "conflict"
  | "payload_too_large"
  | "request_timeout"
  | "unsupported_encoding"
  | "upgrade_required"
  | "unauthorized"
  | "forbidden"
  | "queue_full"
  | "draining"
  | "deadline_exceeded"
  | "model_unreadable"
  | "native_library_missing"
  | "core_version"
  | "core_full"
  | "core_trap"
  | "worker_failed"
  | "not_lossless"
  | "no_worker"
  | "no_open_worker"
  | "no_large_worker"
  | "paused_too_long"
  | "output_failed"
  | "journal_damaged"
  | "internal_error"
  | "interrupted";

export class AppError extends Error {
  readonly code: ErrorCode;

  constructor(code: ErrorCode, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = "AppError";
    this.code = code;
  }
}

/** An engine refused a request, or none could run it. Has the engine's message, and its HTTP status if that is a 4xx. */
export class RefusedError extends AppError {
  readonly status: number | null;

  constructor(refusal: { status: number; message: string; code?: ErrorCode }) {
    super(refusal.code ?? "worker_failed", refusal.message);
    this.status = refusal.status >= 400 && refusal.status < 500 ? refusal.status : null;
  }
}

/** A field of an input is wrong. The message names its location, the field, its value and the bound. */
export class InvalidFieldError extends AppError {
  readonly where: string;
  readonly field: string;
  readonly problem: string;

  constructor(options: { where: string; field: string; problem: string }) {
    super("invalid_field", `${options.where}: ${options.field} ${options.problem}`);
    this.where = options.where;
    this.field = options.field;
    this.problem = options.problem;
  }
}

const FILE_PROBLEMS: Readonly<Record<string, string>> = {
  ENOENT: "there is no such file",
  ENOTDIR: "there is no such file",
  EISDIR: "is a folder, not a file",
  EACCES: "may not be read by this user",
  EPERM: "may not be read by this user",
};

/** Why a file cannot be read. The caller names the file. */
export function fileProblem(error: unknown): string {
  return FILE_PROBLEMS[String(Reflect.get(Object(error), "code"))] ?? errorText(error);
}

export function errorText(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
