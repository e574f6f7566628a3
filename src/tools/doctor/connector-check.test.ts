import { expect, test } from "bun:test";
import { checkConnector } from "./settings-checks.ts";

const config = (name: string, extra: object = {}) => ({
  kv_transfer_config: { kv_connector: name, kv_connector_extra_config: extra },
});

test("checkConnector: a store that leaves out generated tokens gets the setting as fix", () => {
  const without = checkConnector(config("MooncakeStoreConnector"));
  expect(without.verdict).toBe("warn");
  expect(without.fix).toContain("save_decode_cache");
  const whole = checkConnector(config("MooncakeStoreConnector", { save_decode_cache: true }));
  expect(whole.verdict).toBe("ok");
  expect(whole.reason).toContain("prompts and generated tokens");
});

test("checkConnector: what no other server finds is a warning, what may mix weights a failure", () => {
  for (const [name, wanted] of [
    ["NixlConnector", "warn"],
    ["SomeConnector", "fail"],
    ["ExampleConnector", "fail"],
  ] as const) {
    const { verdict, fix } = checkConnector(config(name));
    expect(verdict).toBe(wanted);
    expect(fix).toContain("MooncakeStoreConnector");
  }
});
