// How a condition looks over HTTP: its status, and vLLM's error body. The one place that knows both.

import {
  AppError,
  type ErrorCode,
  errorText,
  InvalidFieldError,
  RefusedError,
} from "../core/base/errors.ts";

const STATUS: Record<ErrorCode, number> = {
  usage: 400,
  invalid_config: 500,
  invalid_json: 400,
  invalid_field: 400,
  context_length_exceeded: 400,
  kv_budget_too_small: 400,
  not_found: 404,
  conflict: 409,
  payload_too_large: 413,
  request_timeout: 408,
  unsupported_encoding: 415,
  upgrade_required: 426,
  unauthorized: 401,
  forbidden: 403,
  queue_full: 429,
  draining: 503,
  no_worker: 503,
  no_open_worker: 503,
  no_large_worker: 503,
  paused_too_long: 503,
  not_lossless: 503,
  worker_failed: 502,
  deadline_exceeded: 504,
  model_unreadable: 500,
  native_library_missing: 500,
  core_version: 500,
  core_full: 500,
  core_trap: 500,
  output_failed: 500,
  journal_damaged: 500,
  internal_error: 500,
  interrupted: 503,
};

const RETRY_AFTER_S: Partial<Record<ErrorCode, number>> = {
  queue_full: 1,
  draining: 5,
  no_worker: 1,
};

/** The status in the log when the client has disconnected, as in nginx. */
export const CLIENT_GONE = 499;

export function statusOf(error: unknown): number {
  if (error instanceof RefusedError && error.status !== null) return error.status;
  return error instanceof AppError ? STATUS[error.code] : 500;
}

/** An error of our own code, which ends one request. */
export function internal(error: unknown): AppError {
  return new AppError("internal_error", `a fault of the server: ${errorText(error)}`);
}

/** vLLM's ErrorResponse: `{"error": {"message", "type", "param", "code"}}`, code being the HTTP status. */
export function errorBody(error: unknown) {
  const status = statusOf(error);
  const message = error instanceof Error ? error.message : String(error);
  const param = error instanceof InvalidFieldError ? error.field : null;
  const type = TYPES[status] ?? (status < 500 ? "BadRequestError" : "InternalServerError");
  return { error: { message, type, param, code: status } };
}

export function errorResponse(error: unknown): Response {
  const headers = new Headers();
  if (error instanceof AppError && error.code === "upgrade_required") {
    headers.set("upgrade", "websocket");
  }
  const retryAfter = error instanceof AppError ? RETRY_AFTER_S[error.code] : undefined;
  if (retryAfter !== undefined) headers.set("retry-after", String(retryAfter));
  return Response.json(errorBody(error), { status: statusOf(error), headers });
}

/** vLLM's error types by status; others are BadRequestError below 500, and InternalServerError from there. */
const TYPES: Readonly<Record<number, string>> = {
  401: "AuthenticationError",
  403: "PermissionDeniedError",
  404: "NotFoundError",
  408: "RequestTimeoutError",
  409: "ConflictError",
  413: "PayloadTooLargeError",
  429: "RateLimitError",
  503: "ServiceUnavailableError",
};
