import { expect, test } from "bun:test";
import { CONNECTORS, connectorLaunch, connectorOf } from "./connectors.ts";

/** /server_info of vLLM 0.32 on CPU, as it was told by a live server; only what is looked at. */
const CONFIG = {
  scheduler_config: { enable_chunked_prefill: false },
  kv_transfer_config: {
    kv_connector: "ExampleConnector",
    engine_id: "3f915321-3ee8-4f90-9ce7-0aeb73465f17",
    kv_buffer_device: "cpu",
    kv_role: "kv_both",
    kv_connector_extra_config: { shared_storage_path: "/kv/a" },
    kv_connector_module_path: null,
    kv_load_failure_policy: "fail",
  },
};

const found = (name: string, extra: object = {}) =>
  connectorOf({
    ...CONFIG,
    kv_transfer_config: { kv_connector: name, kv_connector_extra_config: extra },
  });

test("connectorOf: reads ExampleConnector and its folder", () => {
  expect(connectorOf(CONFIG)).toMatchObject({
    className: "ExampleConnector",
    folder: "/kv/a",
    savesOutput: false,
    problem: null,
  });
});

test("connectorOf: no connector, no configuration and nonsense are none", () => {
  for (const config of [{}, { kv_transfer_config: null }, null, undefined, "text", 3]) {
    expect(connectorOf(config)).toBe(null);
  }
});

test("connectorOf: chunked prefill is a problem of the folder's connector, with its fix", () => {
  const told = connectorOf({ ...CONFIG, scheduler_config: { enable_chunked_prefill: true } });
  expect(told?.problem).toContain("parts of prompts");
  expect(told?.fix).toBe("--no-enable-chunked-prefill");
});

test("connectorOf: output is saved by itself, by a setting, or not", () => {
  expect(found("LMCacheMPConnector")?.savesOutput).toBe(true);
  expect(found("MooncakeStoreConnector")?.savesOutput).toBe(false);
  expect(found("MooncakeStoreConnector", { save_decode_cache: true })?.savesOutput).toBe(true);
  const tiers = { secondary_tiers: [{ type: "fs" }] };
  expect(found("OffloadingConnector", tiers)?.savesOutput).toBe(false);
  const whole = { ...tiers, offload_prompt_only: false };
  expect(found("OffloadingConnector", whole)).toMatchObject({ savesOutput: true, problem: null });
});

test("connectorOf: memory that only one server has, keys of unknown make and unknown connectors have a problem", () => {
  expect(found("OffloadingConnector")?.fix).toContain("secondary_tiers");
  expect(found("LMCacheConnectorV1")?.problem).toContain("weights apart");
  expect(found("NixlConnector")?.problem).toContain("no other server");
  expect(found("NewConnector")).toMatchObject({ row: null, problem: expect.any(String) });
});

test("the table: names and classes are each there once; what keeps no salt lies in a folder", () => {
  const all = CONNECTORS.flatMap(({ name, classes }) => [name, ...classes]);
  expect(new Set(all).size).toBe(all.length);
  // Only a folder can be emptied from here.
  const saltless = CONNECTORS.filter(({ hasSalt }) => hasSalt === false);
  expect(saltless.every(({ reach }) => reach === "folder")).toBe(true);
});

test("connectorLaunch: what it starts is what is found, without a problem", () => {
  for (const { name, launch } of CONNECTORS) {
    if (launch === null) continue;
    const args = connectorLaunch(name, { folder: "/kv/0", port: 8100, isCpu: false });
    const config = JSON.parse(args[args.indexOf("--kv-transfer-config") + 1] ?? "");
    const scheduler_config = {
      enable_chunked_prefill: !args.includes("--no-enable-chunked-prefill"),
    };
    const told = connectorOf({ scheduler_config, kv_transfer_config: config });
    expect(told).toMatchObject({ row: { name }, problem: null });
  }
});
