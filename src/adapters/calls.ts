// Parts that adapters' control calls share: rows that answer in a dialect's own shape, texts in bodies, and the call that
// loads weights from a path. No dialect is known here.

import { AppError, errorText } from "../core/base/errors.ts";
import { type Control, updated } from "../server/control/calls.ts";
import { statusOf } from "../server/http-errors.ts";
import { jsonResponse, type RouteInfo, type Row, reasonIn } from "../server/route.ts";

export interface Done {
  readonly isSuccess: boolean;
  readonly status: number;
  readonly message: string;
}

type Translated = Omit<RouteInfo, "method"> & {
  /** Default: POST, with a body of fields that only the call reads. */
  readonly method?: "GET";
  readonly call: (control: Control, body: unknown) => Response | Promise<Response>;
  readonly answer: (done: Done) => Response;
};

/** A call of the server's under another name: what comes of it, errors included, is written by `answer`. */
export function translated({ call, answer, method, ...info }: Translated): Row<Control> {
  const route = method ? { method } : ({ method: "POST", schema: { type: "object" } } as const);
  return {
    ...route,
    ...info,
    handle: async (control, exchange) => {
      try {
        const body = method === "GET" ? null : await exchange.json();
        const response = await call(control, body);
        const { ok: isSuccess, status } = response;
        const message = (await reasonIn(response)) ?? (isSuccess ? "done" : `status ${status}`);
        return answer({ isSuccess, status, message });
      } catch (error) {
        if (!(error instanceof AppError)) throw error;
        return answer({ isSuccess: false, status: statusOf(error), message: errorText(error) });
      }
    },
  };
}

export const verdict = ({ isSuccess, status, message }: Done) =>
  jsonResponse({ success: isSuccess, message }, isSuccess ? 200 : Math.max(400, status));

/** Loads weights from a path. Generation waits until it is done or has failed: no `pause` and `resume` around it. */
export function reload(control: Control, path: string, version: string | null = null) {
  return updated(control, "whole", { kind: "load", path, version, options: {} });
}
