// Free ports for servers that are about to start.

import { readFileSync } from "node:fs";
import { present } from "../../core/base/assert.ts";

/** Lowest port to try: registered ports begin at 1024, but few services have a fixed port from here on. */
const PORT_MIN = 20_000;
/** First ephemeral port by Linux's default of net.ipv4.ip_local_port_range; outgoing connections use ports from there on. */
const EPHEMERAL_PORT_MIN = 32_768;
/** Limit of ports tried in a row; beyond it the range counts as exhausted. */
const TRIES_MAX = 1000;

/**
 * Ports that are free now, all different, and below those which the kernel gives to outgoing connections: a server may
 * listen minutes later, and until then no connection can take its port.
 * @throws Error where `TRIES_MAX` ports more than asked for were tried
 */
export function freePorts(count: number, host: string): number[] {
  const end = ephemeralPortMin();
  const ports = new Set<number>();
  for (let tries = 0; tries < TRIES_MAX + count; tries += 1) {
    if (ports.size === count) return [...ports];
    const port = PORT_MIN + Math.floor(Math.random() * (end - PORT_MIN));
    if (isFree(port, host)) ports.add(port);
  }
  throw new Error(`no free port of ${host} from ${PORT_MIN} to ${end - 1}`);
}

export function freePort(host: string): number {
  return present(freePorts(1, host)[0], "one port was asked for");
}

function isFree(port: number, host: string): boolean {
  try {
    Bun.listen({ hostname: host, port, socket: { data() {} } }).stop(true);
    return true;
  } catch {
    return false;
  }
}

/** First port of outgoing connections; on some hosts their range holds everything above 20,000. */
function ephemeralPortMin(): number {
  try {
    const range = readFileSync("/proc/sys/net/ipv4/ip_local_port_range", "utf8");
    const min = Number(range.split(/\s+/)[0]);
    return min > PORT_MIN ? min : EPHEMERAL_PORT_MIN;
  } catch {
    return EPHEMERAL_PORT_MIN;
  }
}
