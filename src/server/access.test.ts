import { expect, test } from "bun:test";
import { Access, type AccessOptions, isLoopbackHost } from "./access.ts";

const LOOPBACK: AccessOptions = {
  boundHost: "127.0.0.1",
  machineName: "Node-7",
  apiToken: null,
  allowOrigins: ["https://board.example", "http://sidecar.rl.svc"],
};

/** null: it is let in; else why not. */
function refusal(
  headers: Record<string, string>,
  options: Partial<AccessOptions> = {},
  caller = { method: "POST", path: "/pause" },
): string | null {
  try {
    new Access({ ...LOOPBACK, ...options }).check({ ...caller, headers: new Headers(headers) });
    return null;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

test.each([
  "127.0.0.1:8000",
  "127.9.9.9",
  "localhost:8000",
  "LocalHost.:80",
  "a.localhost",
  "[::1]:8000",
  "10.1.2.3:8000",
  "[fd00::1]",
  "node-7:8000",
  "sidecar.rl.svc",
])("host: %s reaches a server on loopback", (host) => {
  expect(refusal({ host })).toBeNull();
});

test.each([
  "evil.example:8000",
  "localhost.evil.example",
  "127.0.0.1.evil.example",
  "127.0.0.1@evil.example",
  "evil.example#localhost",
  "node-7.evil.example",
  "",
  " ",
])("host: %p does not, without a token", (host) => {
  expect(refusal({ host })).toContain("--allow-origin");
  expect(refusal({ host }, { apiToken: "secret" })).toBeNull();
  expect(refusal({ host }, { allowOrigins: ["*"] })).toBeNull();
});

test("host: a client that sends none is no browser", () => {
  expect(refusal({})).toBeNull();
});

test("token: the one for metrics opens /metrics and nothing else, and the server's opens both", () => {
  const access = new Access({ ...LOOPBACK, apiToken: "secret" });
  const opens = (path: string, token: string) => {
    try {
      access.authorize(new Headers(), new URL(`http://a${path}?token=${token}`));
      return true;
    } catch {
      return false;
    }
  };
  // printf metrics | openssl dgst -sha256 -hmac secret
  const metrics = "a6312fb98077b7e932fa66d9c1d5ed96898071c128eea1a132c5603674ba28de";
  for (const path of ["/metrics", "/v1/models", "/pause", "/metrics/", "/%6detrics"]) {
    expect([path, opens(path, "secret")]).toEqual([path, true]);
    expect([path, opens(path, metrics)]).toEqual([path, path === "/metrics"]);
    expect([path, opens(path, metrics.slice(1))]).toEqual([path, false]);
  }
});

test("origin: the server's own is let in, whatever the name it is reached by", () => {
  expect(refusal({ host: "127.0.0.1:8000", origin: "http://127.0.0.1:8000" })).toBeNull();
  expect(refusal({ host: "localhost", origin: "http://localhost" })).toBeNull();
  const named = { host: "gpu.example:8000", origin: "http://gpu.example:8000" };
  expect(refusal(named, { apiToken: "secret" })).toBeNull();
  expect(refusal(named)).toContain("Host gpu.example:8000");
});

test.each([
  "http://evil.example",
  "http://127.0.0.1:9000",
  "https://127.0.0.1:8000",
  "http://localhost:8000",
  "http://127.0.0.1:8000.evil.example",
  "null",
  "",
  "*",
  "file://",
])("origin: %p is another one", (origin) => {
  const headers = { host: "127.0.0.1:8000", origin };
  for (const apiToken of [null, "secret"]) {
    expect(refusal(headers, { apiToken })).toContain(`--allow-origin ${origin}`);
    expect(refusal({ ...headers, "sec-fetch-site": "same-origin" }, { apiToken })).not.toBeNull();
  }
});

test("origin: one that is allowed is let in, and may read answers", () => {
  const headers = { host: "127.0.0.1", origin: "https://board.example" };
  expect(refusal({ ...headers, "sec-fetch-site": "cross-site" })).toBeNull();
  const access = new Access(LOOPBACK);
  expect(access.sharing("https://board.example")).toMatchObject({
    "access-control-allow-origin": "https://board.example",
  });
  expect(access.sharing("https://other.example")).toBeNull();
  expect(refusal({ host: "127.0.0.1", origin: "null" }, { allowOrigins: ["*"] })).toBeNull();
});

test("site: a request that another site caused is refused, but for a link to the page", () => {
  const host = "127.0.0.1:8000";
  for (const site of ["cross-site", "same-site", "other"]) {
    expect(refusal({ host, "sec-fetch-site": site })).toContain(`Sec-Fetch-Site is ${site}`);
  }
  expect(refusal({ host, "sec-fetch-site": "none" })).toBeNull();
  expect(refusal({ host, "sec-fetch-site": "same-origin" })).toBeNull();
  const link = {
    host,
    "sec-fetch-site": "cross-site",
    "sec-fetch-mode": "navigate",
    "sec-fetch-dest": "document",
  };
  expect(refusal(link, {}, { method: "GET", path: "/" })).toBeNull();
  expect(refusal(link, {}, { method: "POST", path: "/" })).not.toBeNull();
  expect(refusal(link, {}, { method: "GET", path: "/v1/models" })).not.toBeNull();
  const frame = { ...link, "sec-fetch-dest": "iframe" };
  expect(refusal(frame, {}, { method: "GET", path: "/" })).not.toBeNull();
});

test("isLoopbackHost: addresses and names that stay on this machine", () => {
  for (const host of ["127.0.0.1", "127.0.1.1", "::1", "[::1]", "localhost", "127.1"]) {
    expect(isLoopbackHost(host)).toBe(true);
  }
  for (const host of ["0.0.0.0", "::", "0", "10.0.0.1", "example.org", "localhost.evil.example"]) {
    expect(isLoopbackHost(host)).toBe(false);
  }
});
