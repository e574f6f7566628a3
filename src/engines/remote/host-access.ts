// Who may have a host's worker.

import { createHash, timingSafeEqual } from "node:crypto";
import { LINK_PROTOCOL_VERSION } from "./limits.ts";
import type { Hello } from "./message.ts";

/** null: the sidecar is accepted. `token`: required by the host; null: none. */
export function refusalOf(hello: Hello, token: string | null): string | null {
  if (hello.protocolVersion !== LINK_PROTOCOL_VERSION) {
    return `version: the sidecar speaks ${hello.protocolVersion}, not ${LINK_PROTOCOL_VERSION}`;
  }
  return isToken(hello.token, token) ? null : "unauthorized: another token is asked for";
}

/** Whether a new sidecar gets the worker: the present one has gone, is silent, or is the same. */
export function isTakenOver(
  holder: { readonly connection: { readonly isQuiet: boolean } | null; readonly sidecarId: string },
  newcomer: Hello,
): boolean {
  const isSame = holder.sidecarId !== "" && holder.sidecarId === newcomer.sidecarId;
  return isSame || holder.connection === null || holder.connection.isQuiet;
}

/** In constant time: the duration does not depend on the token. */
function isToken(given: string, wanted: string | null): boolean {
  if (wanted === null) return true;
  const hash = (text: string) => createHash("sha256").update(text).digest();
  return timingSafeEqual(hash(given), hash(wanted));
}
