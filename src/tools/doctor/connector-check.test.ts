import { expect, test } from "bun:test";
import { connectorOf } from "../../engines/vllm/connectors.ts";
import { checkConnector } from "./settings-checks.ts";

const config = (name: string, extra: object = {}) => ({
  kv_transfer_config: { kv_connector: name, kv_connector_extra_config: extra },
});

test("checkConnector: what no other server finds is a warning, what may mix weights a failure", () => {
  for (const [name, wanted] of [
    ["NixlConnector", "warn"],
    ["SomeConnector", "fail"],
    ["ExampleConnector", "fail"],
  ] as const) {
    const { verdict, fix } = checkConnector({ connector: connectorOf(config(name)) });
    expect(verdict).toBe(wanted);
    expect(fix).toContain("MooncakeStoreConnector");
  }
});
