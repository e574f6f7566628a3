// Checks the token of a request against the right that its route needs.

import { timingSafeEqual } from "node:crypto";
import { AppError } from "../core/base/errors.ts";
import type { Right } from "./rights.ts";

export interface Tokens {
  /** For every route; null: none is asked for, of anyone. */
  readonly apiToken: string | null;
  /** For routes that only read; null or absent: there is none. */
  readonly readToken?: string | null;
}

/** Browsers cannot set headers on a socket, so the token may stand in the query as well. */
export function givenToken(headers: Headers, url: URL): string | null {
  const header = headers.get("authorization")?.replace(/^Bearer /i, "");
  return header ?? url.searchParams.get("token");
}

/** @throws AppError unauthorized: no token is given, or an unknown one; forbidden: it is the read token. */
export function authorize(
  given: string | null,
  { apiToken, readToken = null }: Tokens,
  { right, what }: { right: Right; what: string },
): void {
  if (apiToken === null || right === "open") return;
  if (isSame(given, apiToken)) return;
  if (readToken === null || !isSame(given, readToken)) {
    throw new AppError(
      "unauthorized",
      "the API token is missing or wrong (Authorization: Bearer ...)",
    );
  }
  if (right === "read") return;
  throw new AppError("forbidden", `the read token does not permit ${what}: give the API token`);
}

function isSame(given: string | null, token: string): boolean {
  if (given === null) return false;
  const [left, right] = [Buffer.from(given), Buffer.from(token)];
  return left.length === right.length && timingSafeEqual(left, right);
}
