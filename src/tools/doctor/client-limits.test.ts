import { expect, test } from "bun:test";
import { checkClientLimits } from "./shared-checks.ts";

test("clients' limits: engines with more slots than one address fills are a warning that says what to set", () => {
  expect(checkClientLimits([128])).toMatchObject({ verdict: "info", fix: null });
  expect(checkClientLimits([256, 256])).toMatchObject({ verdict: "info", fix: null });
  const many = checkClientLimits([256, 256, 256]);
  expect(many.verdict).toBe("warn");
  expect(many.reason).toContain("these 3 engines have 768 slots");
  expect(many.fix).toContain("--sglang-server-concurrency 1536;");
  expect(checkClientLimits([1024]).fix).toContain("--sglang-server-concurrency 1024;");
  expect(checkClientLimits([null, null, null]).reason).toContain("about 768 slots");
});
