// Free ports for servers that are about to start.

/** Ports that were free a moment ago, all different. */
export function freePorts(count: number, host: string): number[] {
  const held = Array.from({ length: count }, () =>
    Bun.listen({ hostname: host, port: 0, socket: { data() {} } }),
  );
  const ports = held.map(({ port }) => port);
  for (const listener of held) listener.stop(true);
  return ports;
}
