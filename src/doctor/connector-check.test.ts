import { expect, test } from "bun:test";
import { checkConnector } from "./connector-check.ts";

const config = (name: string, extra: object = {}) => ({
  scheduler_config: { enable_chunked_prefill: false },
  kv_transfer_config: { kv_connector: name, kv_connector_extra_config: extra },
});

test("checkConnector: none is no fault", () => {
  expect(checkConnector({}).verdict).toBe("info");
  expect(checkConnector({ kv_transfer_config: null }).verdict).toBe("info");
});

test("checkConnector: one that can be used is told with what it keeps, and where", () => {
  const finding = checkConnector(config("ExampleConnector", { shared_storage_path: "/kv/0" }));
  expect(finding.verdict).toBe("ok");
  expect(finding.reason).toStartWith("ExampleConnector keeps prompts in /kv/0");
});

test("checkConnector: a store that leaves out generated tokens is told the setting", () => {
  const without = checkConnector(config("MooncakeStoreConnector"));
  expect(without.verdict).toBe("warn");
  expect(without.fix).toContain("save_decode_cache");
  const whole = checkConnector(config("MooncakeStoreConnector", { save_decode_cache: true }));
  expect(whole.verdict).toBe("ok");
});

test("checkConnector: what no other server finds, and what nobody knows, is a warning with a way out", () => {
  for (const name of ["NixlConnector", "SomeConnector"]) {
    const { verdict, fix } = checkConnector(config(name));
    expect(verdict).toBe("warn");
    expect(fix).toContain("MooncakeStoreConnector");
  }
});
