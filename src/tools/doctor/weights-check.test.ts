import { expect, test } from "bun:test";
import { present } from "../../core/base/assert.ts";
import { Engine } from "./engine.ts";
import { checkWeights } from "./shared-checks.ts";

function engine(version: string | null, checksums: Record<string, string> | null) {
  const server = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    fetch: ({ url }) => {
      const { pathname } = new URL(url);
      if (pathname === "/weight_info" && version !== null) {
        return Response.json({ weight_version: version });
      }
      if (pathname === "/weight_checker" && checksums !== null) return Response.json({ checksums });
      return new Response("", { status: 404 });
    },
  });
  return server;
}

async function found(...engines: readonly Parameters<typeof engine>[]) {
  const servers = engines.map((one) => engine(...one));
  const [one, other] = servers.map(({ url }) => new Engine(url.origin, null));
  const finding = await checkWeights(present(one, "one"), present(other, "another"));
  for (const server of servers) server.stop(true);
  return finding;
}

test("same weights: other names, or other checksums, are stale weights", async () => {
  expect(await found(["step-2", null], ["step-1", null])).toMatchObject({ verdict: "fail" });
  expect(await found(["step-2", null], ["step-2", null])).toMatchObject({ verdict: "ok" });
  const sums = { a: "1", b: "2" };
  expect(await found(["default", sums], ["default", sums])).toMatchObject({ verdict: "ok" });
  const stale = await found(["default", sums], ["default", { ...sums, b: "3" }]);
  expect(stale).toMatchObject({ verdict: "fail" });
  expect(stale?.reason).toContain("1 of 2 checksums differ");
});

test("same weights: without names or checksums nothing can be said", async () => {
  expect(await found(["default", null], ["default", null])).toMatchObject({ verdict: "info" });
  expect(await found([null, null], ["step-1", null])).toBeNull();
});
