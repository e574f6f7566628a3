// Any client that reaches a server can pause it, make it generate, and replace its weights. Decides whether the server
// is protected: beyond loopback a token is required, unless the operator declares that the network protects it.

import { AppError } from "../core/base/errors.ts";
import { isLoopbackHost } from "../server/access.ts";

export interface Exposure {
  readonly host: string;
  readonly apiToken: string | null;
  readonly insecure: boolean;
}

/** Returns a warning for the operator; null: none. @throws AppError usage: a token is required. */
export function checkExposure({ host, apiToken, insecure }: Exposure): string | null {
  if (apiToken !== null || isLoopbackHost(host)) return null;
  if (insecure) return `${host} can be reached from other machines, and no token protects it`;
  throw new AppError(
    "usage",
    `--host is ${host}, which other machines can reach, and no token protects it: ` +
      "give --api-token, or --insecure where the network does",
  );
}
