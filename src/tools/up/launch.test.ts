import { expect, test } from "bun:test";
import { type LaunchOptions, launchOf } from "./launch.ts";

const OPTIONS: LaunchOptions = {
  command: "/v/bin/vllm",
  build: { version: "0.32.0", isCpu: true },
  model: "/m",
  host: "127.0.0.1",
  port: 8100,
  gpus: null,
  contextTokens: null,
  servedName: null,
  apiKey: null,
  plugin: null,
  pool: null,
  extraArgs: [],
};

const launched = (options: Partial<LaunchOptions>) => {
  const { command, env } = launchOf({ ...OPTIONS, ...options });
  return { text: command.join(" "), env };
};
const GPUS = { build: { version: "0.32.0", isCpu: false }, gpus: "2,3" };

test("launchOf: the endpoint for token ids is switched on as the version wants it", () => {
  const told = ["0.22.1", "0.31.9", "0.32.0", "1.0"].map((version) => {
    const { text, env } = launched({ build: { version, isCpu: true } });
    return [text.includes("--enable-scale-out"), env.VLLM_ENABLE_SCALE_OUT_ENDPOINTS ?? null];
  });
  expect(told).toEqual([
    [false, "1"],
    [false, "1"],
    [true, null],
    [true, null],
  ]);
});

test("launchOf: flags and environment of what a server computes on, of the user and of the key", () => {
  const cpu = launched({ extraArgs: ["--dtype", "bfloat16"], apiKey: "secret" });
  expect(cpu.text).toContain("--no-enable-chunked-prefill");
  // What comes last wins.
  expect(cpu.text).toMatch(/--dtype float32 .*--dtype bfloat16$/);
  expect(cpu.text).not.toContain("secret");
  expect(cpu.env).toMatchObject({ VLLM_ENABLE_V1_MULTIPROCESSING: "0", VLLM_API_KEY: "secret" });
  expect(cpu.env.CUDA_VISIBLE_DEVICES).toBeUndefined();
  const gpu = launched(GPUS);
  expect(gpu.env.CUDA_VISIBLE_DEVICES).toBe("2,3");
  expect(gpu.text).toContain("--weight-transfer-config");
  expect(gpu.text).not.toContain("--dtype");
});

test("launchOf: Mooncake's look-ups have a socket of each server's own, and the pool's settings come with it", () => {
  const pool = {
    env: { MOONCAKE_CONFIG_PATH: "/p.json" },
    envDefaults: { VLLM_HOST_IP: "127.0.0.1" },
  };
  const { command, env, envDefaults } = launchOf({ ...OPTIONS, pool });
  const config = JSON.parse(command[command.indexOf("--kv-transfer-config") + 1] ?? "");
  expect(config).toMatchObject({
    kv_connector: "MooncakeStoreConnector",
    kv_connector_module_path: "foretoken_vllm.mooncake",
    kv_load_failure_policy: "recompute",
    kv_connector_extra_config: { save_decode_cache: true, lookup_rpc_port: OPTIONS.port },
  });
  expect(env).toMatchObject({ MOONCAKE_CONFIG_PATH: "/p.json", PYTHONHASHSEED: "0" });
  expect(envDefaults.VLLM_HOST_IP).toBe("127.0.0.1");
});

test("launchOf: a version before 0.22, and what is no version, is refused by name", () => {
  const launch = (version: string) => () => launched({ build: { version, isCpu: true } });
  expect(launch("0.21.3")).toThrow("vLLM 0.21.3 is too old: it takes 0.22");
  expect(launch("main")).toThrow('vLLM reports version "main"');
});

const PLUGIN = {
  draftUrl: "ws://127.0.0.1:8000/v1/draft",
  token: "secret",
  statsFile: "/logs/vllm-1.plugin.json",
  runner: 1,
} as const;

const speculationOf = (command: readonly string[]): unknown =>
  JSON.parse(command[command.indexOf("--speculative-config") + 1] ?? "");

const valuesOf = (command: readonly string[], flag: string): readonly number[] => {
  const from = command.indexOf(flag) + 1;
  const values = command.slice(from).map(Number);
  return from === 0 ? [] : values.slice(0, [...values, Number.NaN].findIndex(Number.isNaN));
};

test("launchOf: under the second runner the plugin's method runs with asynchronous scheduling", () => {
  const { command, env } = launchOf({ ...OPTIONS, plugin: { ...PLUGIN, runner: 2 } });
  expect(speculationOf(command)).toEqual({
    method: "ngram_gpu",
    model: "foretoken_vllm.speculator",
    num_speculative_tokens: 7,
  });
  expect(env.VLLM_USE_V2_MODEL_RUNNER).toBe("1");
  expect(command).not.toContain("--cudagraph-capture-sizes");
});

test("launchOf: on GPUs the second runner captures graphs of every length that may be chosen", () => {
  const { build } = GPUS;
  const plugin = { ...PLUGIN, runner: 2 } as const;
  const commandOf = (...extraArgs: string[]) =>
    launchOf({ ...OPTIONS, build, plugin, extraArgs }).command;
  const sizes = valuesOf(commandOf(), "--cudagraph-capture-sizes");
  expect([sizes.length, sizes[0], sizes.at(-1)]).toEqual([52, 8, 2048]);
  expect(sizes.every((size) => size % 8 === 0)).toBe(true);
  expect(valuesOf(commandOf(), "--max-num-seqs")).toEqual([256]);
  expect(speculationOf(commandOf("--max_num_seqs=6"))).toMatchObject({
    num_speculative_tokens_per_batch_size: [
      [1, 2, 7],
      [3, 3, 0],
      [4, 4, 1],
      [5, 5, 3],
      [6, 6, 7],
    ],
  });
  expect(valuesOf(commandOf("--max-num-seqs", "6"), "--cudagraph-capture-sizes").at(-1)).toBe(48);
  // vLLM takes the sizes once.
  const own = ["--compilation-config", '{"cudagraph_capture_sizes":[1,2]}'];
  expect(commandOf(...own)).not.toContain("--cudagraph-capture-sizes");
});

test("launchOf: a head that the user names is not replaced, and has graphs of the lengths below its own", () => {
  const launchWith = (isCpu: boolean, runner: 1 | 2, ...extraArgs: string[]) => {
    const build = { version: "0.32.0", isCpu };
    return launchOf({ ...OPTIONS, build, plugin: { ...PLUGIN, runner }, extraArgs });
  };
  const head = (drafts: number) => ({
    method: "eagle3",
    model: "/head",
    num_speculative_tokens: drafts,
  });
  const asked = (drafts: number) => ["--speculative_config", JSON.stringify(head(drafts))];
  const { command, env } = launchWith(false, 2, ...asked(3), "--max-num-seqs", "6");
  expect(env.FORETOKEN_BESIDE).toBe("1");
  // vLLM takes the last one.
  expect(speculationOf(command.slice(command.lastIndexOf("--speculative-config")))).toEqual({
    ...head(3),
    num_speculative_tokens_per_batch_size: [
      [1, 3, 3],
      [4, 4, 0],
      [5, 5, 1],
      [6, 6, 3],
    ],
  });
  expect(valuesOf(command, "--cudagraph-capture-sizes").at(-1)).toBe(24);
  // Rows of 5 fit no graph of 4.
  const { command: five } = launchWith(false, 2, ...asked(4));
  expect(speculationOf(five.slice(five.lastIndexOf("--speculative-config")))).toEqual(head(4));
  expect(five).not.toContain("--cudagraph-capture-sizes");
  // A CPU has no graphs; and what is no head, or under the first runner, is the user's alone.
  expect(launchWith(true, 2, ...asked(3)).command.slice(-2)).toEqual(asked(3));
  const others = [
    launchWith(true, 1, ...asked(3)),
    launchWith(true, 2, "--speculative-config", '{"method":"ngram"}'),
    launchWith(true, 2, '--speculative-config={"method":'),
    launchWith(true, 2),
  ];
  for (const other of others) expect(other.env.FORETOKEN_BESIDE).toBeUndefined();
  expect(launchWith(true, 2, `--speculative-config=${asked(7)[1]}`).env.FORETOKEN_BESIDE).toBe("1");
});

test("launchOf: the plugin gets the sidecar's address, its name and token by the environment", () => {
  const plugin = PLUGIN;
  const { command, env } = launchOf({ ...OPTIONS, plugin });
  expect(speculationOf(command)).toEqual({
    method: "custom_class",
    model: "foretoken_vllm.proposer.ForetokenProposer",
    num_speculative_tokens: 16,
  });
  expect(env).toMatchObject({
    VLLM_USE_V2_MODEL_RUNNER: "0",
    FORETOKEN_DRAFT_URL: plugin.draftUrl,
    FORETOKEN_ENGINE: "http://127.0.0.1:8100",
    FORETOKEN_TOKEN: "secret",
  });
  expect(command.join(" ")).not.toContain("secret");
});
