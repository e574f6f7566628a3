// Any client that reaches a server can pause it, make it generate, and replace its weights. Decides whether the server
// is protected: beyond loopback a token is required, unless the operator declares that the network protects it.

import type { Settings } from "../config/fields.ts";
import { AppError } from "../core/base/errors.ts";
import { isLoopbackHost } from "../server/access.ts";

/** Returns a warning for the operator; null: none. @throws AppError usage: a token is required. */
export function checkExposure(settings: Settings<"host" | "apiToken" | "insecure">): string | null {
  const { host, apiToken, insecure } = settings;
  if (apiToken !== null || isLoopbackHost(host)) return null;
  if (insecure) return `${host} can be reached from other machines, and no token protects it`;
  const problem = `--host is ${host}, which other machines can reach, and no token protects it`;
  const fix = "give --api-token, or --insecure where the network does";
  throw new AppError("usage", `${problem}: ${fix}`);
}
