import { expect, test } from "bun:test";
import { connectorOf, mooncakeArgs } from "./connectors.ts";

/** /server_info of vLLM 0.32 on a CPU, as a live server answered; only what is looked at. */
const CONFIG = {
  kv_transfer_config: {
    kv_connector: "MooncakeStoreConnector",
    engine_id: "3f915321-3ee8-4f90-9ce7-0aeb73465f17",
    kv_buffer_device: "cpu",
    kv_role: "kv_both",
    kv_connector_extra_config: { save_decode_cache: true, load_async: true },
    kv_connector_module_path: "foretoken_vllm.mooncake",
    kv_load_failure_policy: "recompute",
  },
};

const found = (name: string, extra: object = {}) =>
  connectorOf({ kv_transfer_config: { kv_connector: name, kv_connector_extra_config: extra } });

test("connectorOf: reads Mooncake's connector as `foretoken up` starts it", () => {
  expect(connectorOf(CONFIG)).toMatchObject({
    className: "MooncakeStoreConnector",
    savesOutput: true,
    problem: null,
    mixesWeights: false,
  });
});

test("connectorOf: no connector, no configuration and nonsense are none", () => {
  for (const config of [{}, { kv_transfer_config: null }, null, undefined, "text", 3]) {
    expect(connectorOf(config)).toBe(null);
  }
});

test("connectorOf: a store whose keys hold no salt, or that is not known, may mix weights", () => {
  for (const name of ["ExampleConnector", "SharedStorageConnector", "LMCacheConnectorV1", "New"]) {
    expect(found(name)).toMatchObject({ mixesWeights: true, problem: expect.any(String) });
  }
  for (const name of ["NixlConnector", "LMCacheMPConnector", "OffloadingConnector"]) {
    expect(found(name)?.mixesWeights).toBe(false);
  }
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
  expect(found("ExampleConnector")?.fix).toContain("MooncakeStoreConnector");
  expect(found("NixlConnector")?.problem).toContain("no other server");
  expect(found("NewConnector")).toMatchObject({ row: null, problem: expect.any(String) });
});

test("mooncakeArgs: what they start is what is found, without a problem", () => {
  const [flag, config = ""] = mooncakeArgs(8100);
  expect(flag).toBe("--kv-transfer-config");
  const told = connectorOf({ kv_transfer_config: JSON.parse(config) });
  expect(told).toMatchObject({ savesOutput: true, problem: null, mixesWeights: false });
});
