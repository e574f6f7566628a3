// Parts that adapters' control calls share: rows that answer in a dialect's own shape, texts in bodies, and the call that
// loads weights from a path. No dialect is known here.

import { AppError, errorText } from "../core/base/errors.ts";
import type { Control } from "../server/control/calls.ts";
import { statusOf } from "../server/http-errors.ts";
import { invalid, jsonResponse, type RouteInfo, type Row, reasonIn } from "../server/route.ts";

const PATH_CHARACTERS_MAX = 4096;

export interface Done {
  readonly isSuccess: boolean;
  readonly status: number;
  readonly message: string;
}

type Translated = Omit<RouteInfo, "method" | "answer"> & {
  /** Default: POST, with a body of fields that only the call reads. */
  readonly method?: "GET";
  readonly call: (control: Control, body: unknown) => Response | Promise<Response>;
  readonly answer: (done: Done) => Response;
};

/** A call of the server's under another name: what comes of it, errors included, is written by `answer`. */
export function translated({ call, answer, method, ...info }: Translated): Row<Control> {
  const route = method ? { method } : ({ method: "POST", schema: { type: "object" } } as const);
  return {
    ...{ ...route, ...info },
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

export function reload(control: Control, path: string, version: string | null = null) {
  return control.weights.whole({ kind: "load", path, version, options: {} });
}

export function textIn(body: unknown, field: string): string {
  const value = optionalTextIn(body, field);
  if (value === null || value === "") throw invalid(field, "is not a text");
  return value;
}

export function optionalTextIn(body: unknown, field: string): string | null {
  const value: unknown = Object(body)[field] ?? null;
  if (value === null) return null;
  if (typeof value !== "string") throw invalid(field, "is not a text");
  if (value.length <= PATH_CHARACTERS_MAX) return value;
  throw invalid(field, `has ${value.length} characters, more than ${PATH_CHARACTERS_MAX}`);
}
