// Checks the token of a request.

import { timingSafeEqual } from "node:crypto";
import { AppError } from "../core/base/errors.ts";

/** Browsers cannot set headers on a socket, so the token may stand in the query as well. */
export function givenToken(headers: Headers, url: URL): string | null {
  const header = headers.get("authorization")?.replace(/^Bearer /i, "");
  return header ?? url.searchParams.get("token");
}

/** `apiToken` null: none is asked for, of anyone. @throws AppError unauthorized: no token is given, or another one. */
export function authorize(given: string | null, apiToken: string | null): void {
  if (apiToken === null || isSame(given, apiToken)) return;
  const message = "the API token is missing or wrong (Authorization: Bearer ...)";
  throw new AppError("unauthorized", message);
}

function isSame(given: string | null, token: string): boolean {
  if (given === null) return false;
  const [left, right] = [Buffer.from(given), Buffer.from(token)];
  return left.length === right.length && timingSafeEqual(left, right);
}
