// The commands as processes: beyond loopback none of them listens without a token.

import { expect, test } from "bun:test";
import { foretoken, start } from "../../test/e2e/tool.ts";
import { checkExposure } from "./exposure.ts";
import { EXIT_USAGE } from "./output.ts";

const DEFAULTS = { host: "0.0.0.0", apiToken: null, insecure: false };

test("checkExposure: loopback or a token is enough, --insecure is a warning", () => {
  const warnings: string[] = [];
  const check = (given: Partial<Parameters<typeof checkExposure>[0]>) =>
    checkExposure({ ...DEFAULTS, ...given }, (reason) => warnings.push(reason));
  expect(() => check({})).toThrow(
    "--host is 0.0.0.0, which other machines can reach, and no token protects it: give --api-token, or --insecure",
  );
  for (const host of ["127.0.0.1", "::1", "localhost"]) check({ host });
  check({ apiToken: "t" });
  expect(warnings).toEqual([]);
  check({ insecure: true });
  expect(warnings).toEqual([expect.stringContaining("no token protects it")]);
  for (const host of ["::", "10.0.0.1", "gpu-0"]) {
    expect(() => check({ host })).toThrow(host);
  }
});

test.each([
  "serve --llama 1 --port 0 --host 0.0.0.0",
  "up --port 0 --host ::",
  "draft-server --port 0 --host 0.0.0.0",
])("foretoken %s: is refused", async (line) => {
  const { status, stderr } = await foretoken(...line.split(" "));
  expect(stderr).toContain("no token protects it: give --api-token, or --insecure");
  expect(status).toBe(EXIT_USAGE);
});

test("draft-server: --insecure listens, with a warning", async () => {
  const child = start(["draft-server", "--port", "0", "--host", "0.0.0.0", "--insecure"]);
  const { value } = await child.stdout.getReader().read();
  expect(new TextDecoder().decode(value)).toContain("draft server on ws://");
  child.kill("SIGTERM");
  expect(await new Response(child.stderr).text()).toContain("no token protects it [insecure]");
  expect(await child.exited).toBe(0);
});
