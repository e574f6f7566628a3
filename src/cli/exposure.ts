// Any client that reaches a server can pause it, make it generate, and replace its weights. Decides whether the server
// is protected: beyond loopback a token is required, unless the operator declares that the network protects it.

import type { Settings } from "../config/fields.ts";
import { AppError } from "../core/base/errors.ts";
import { isLoopbackHost } from "../server/access.ts";

/** Calls `warn` if others can reach the address. @throws AppError usage: they can, and a token is required. */
export function checkExposure(
  { host, apiToken, insecure }: Settings<"host" | "apiToken" | "insecure">,
  warn: (reason: string) => void,
): void {
  if (apiToken !== null || isLoopbackHost(host)) return;
  if (insecure) {
    warn(`${host} can be reached from other machines, and no token protects it`);
    return;
  }
  const problem = `--host is ${host}, which other machines can reach, and no token protects it`;
  const fix = "give --api-token, or --insecure where the network does";
  throw new AppError("usage", `${problem}: ${fix}`);
}
