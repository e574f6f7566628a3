// Limits of trainers' clients, which count addresses: behind a sidecar all engines are one address.

import { type Finding, info, warn } from "./finding.ts";

/** slime's default for --sglang-server-concurrency, and SkyRL's limit: requests in flight for each address. */
const IN_FLIGHT_PER_ADDRESS = 512;
/** vLLM's default, where an engine does not report its own. */
const SLOTS_DEFAULT = 256;

/** `slots`: of each engine; null: not reported. */
export function checkClientLimits(slots: readonly (number | null)[]): Finding {
  const check = "clients' limits";
  const total = slots.reduce<number>((sum, one) => sum + (one ?? SLOTS_DEFAULT), 0);
  const engines = slots.length === 1 ? "this engine has" : `these ${slots.length} engines have`;
  const about = slots.includes(null) ? "about " : "";
  const reason = `SkyRL and slime keep ${IN_FLIGHT_PER_ADDRESS} requests in flight for each address, and a sidecar is one address; ${engines} ${about}${total} slots`;
  if (total <= IN_FLIGHT_PER_ADDRESS) return info(check, `${reason}, which that fills`);
  const limit =
    IN_FLIGHT_PER_ADDRESS * Math.max(slots.length, Math.ceil(total / IN_FLIGHT_PER_ADDRESS));
  const fix = `slime: --sglang-server-concurrency ${limit}; SkyRL: its client's limit, to ${limit} too`;
  return warn(check, `${reason}: the rest stays idle`, fix);
}
