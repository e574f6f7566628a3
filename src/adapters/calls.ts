// Parts that adapters' control calls share: rows that answer in a dialect's own shape, and the call that loads weights from
// a path. They belong to no dialect.

import { AppError, errorText } from "../core/base/errors.ts";
import { type Control, updated } from "../server/control/calls.ts";
import { statusOf } from "../server/http-errors.ts";
import { jsonResponse, type Row, reasonIn } from "../server/route.ts";

export interface Done {
  readonly isSuccess: boolean;
  readonly status: number;
  readonly message: string;
}

/** A row for one of the server's calls under another name. `answer` writes its result, errors included. */
export function translated(
  path: string,
  summary: string,
  answer: (done: Done) => Response,
  call: (control: Control, body: unknown) => Response | Promise<Response>,
): Row<Control> {
  const handle: Row<Control>["handle"] = async (control, exchange) => {
    try {
      const body = exchange.method === "POST" ? await exchange.json() : null;
      const response = await call(control, body);
      const { ok: isSuccess, status } = response;
      const message = (await reasonIn(response)) ?? (isSuccess ? "done" : `status ${status}`);
      return answer({ isSuccess, status, message });
    } catch (error) {
      if (!(error instanceof AppError)) throw error;
      return answer({ isSuccess: false, status: statusOf(error), message: errorText(error) });
    }
  };
  return { method: "POST", path, summary, schema: { type: "object" }, handle };
}

export const verdict = ({ isSuccess, status, message }: Done, more: object = {}) =>
  jsonResponse({ success: isSuccess, message, ...more }, isSuccess ? 200 : Math.max(400, status));

/** Loads weights from a path. Generation stops meanwhile by itself: the trainer need not pause and resume. */
export function reload(control: Control, path: string, version: string | null = null) {
  return updated(control, "whole", { kind: "load", path, version, options: {} });
}
