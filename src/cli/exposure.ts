// Any client that reaches a server can pause it, make it generate, and replace its weights. Decides whether the server
// is protected: beyond loopback a token is required, unless the operator declares that the network protects it.

import { AppError } from "../core/base/errors.ts";
import { isLoopbackHost } from "../server/access.ts";

export interface Exposure {
  /** The flag that `host` came from. */
  readonly flag: string;
  readonly host: string;
  readonly token: string | null;
  readonly tokenFlag: string;
  readonly insecure: boolean;
}

/** null, or what the operator is to be warned of. @throws AppError usage. */
export function checkExposure(exposure: Exposure): string | null {
  const { flag, host, token, tokenFlag, insecure } = exposure;
  if (token !== null || isLoopbackHost(host)) return null;
  if (insecure) return `${host} can be reached from other machines, and no token protects it`;
  throw new AppError(
    "usage",
    `${flag} is ${host}, which other machines can reach, and no token protects it: ` +
      `give ${tokenFlag}, or --insecure where the network does`,
  );
}
