import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { freePorts } from "./ports.ts";

const HOST = "127.0.0.1";

test("freePorts: no outgoing connection can take them before their server listens", () => {
  const range = readFileSync("/proc/sys/net/ipv4/ip_local_port_range", "utf8");
  const ports = freePorts(64, HOST);
  expect(new Set(ports).size).toBe(64);
  for (const port of ports) expect(port).toBeLessThan(Number(range.split(/\s+/)[0]));
});

test("freePorts: an address that is not this host's is named", () => {
  expect(() => freePorts(1, "192.0.2.1")).toThrow("192.0.2.1");
});
