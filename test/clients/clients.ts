// What the tests of trainers' own classes share: where their Python environments are, which drivers there are, and how
// they are run against one server.

import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { ToolProcess } from "../faults/process.ts";
import { scaledModel } from "../vllm/fleet.ts";

const ROOT = join(import.meta.dir, "..", "..");
const DRIVERS = join(import.meta.dir, "python");
/** verl takes the manager from the package. */
const PACKAGE = join(ROOT, "native", "foretoken_vllm", "src");
/** TRL imports names of vLLM that it does not use here. */
const STAND_IN_FOR_VLLM = join(ROOT, "examples", "grpo");
/** A driver that hangs fails by name, before the test's own limit. */
const DRIVER_MS_MAX = 540_000;

export interface Environment {
  readonly python: string;
  /** null: it is there; else what makes it. */
  readonly missing: string | null;
}

/** `npm run clients:install` makes it: no torch. */
export const LIGHT = environment("clients", "npm run clients:install");
/** With torch, TRL, AReaL and verl. */
export const TORCH = environment("clients-torch", "npm run clients:install -- --torch");

/** Agents' packages. */
export const AGENTS = environment("agents", "npm run clients:install -- --agents");

/** A driver, and the steps that it takes. `sources`: names the variable with the folder of its sources. */
export interface DriverTest {
  readonly name: string;
  readonly steps: number;
  readonly environment: Environment;
  readonly sources?: string;
}

const light = (name: string, steps: number): DriverTest => ({ name, steps, environment: LIGHT });
const torch = (name: string, steps: number): DriverTest => ({ name, steps, environment: TORCH });

export const LIGHT_DRIVERS: readonly DriverTest[] = [
  light("renderers", 3),
  light("verifiers", 4),
  light("agentlightning", 4),
  light("verl_server", 2),
  light("skyrl", 9),
];
export const TORCH_DRIVERS: readonly DriverTest[] = [
  torch("trl", 3),
  torch("areal", 2),
  torch("verl", 2),
];
/** Drivers of trainers that no registry has: they run where the trainer's sources are. */
export const SOURCE_DRIVERS: readonly DriverTest[] = [
  { ...light("rllm", 4), sources: "RLLM" },
  { ...light("nemo_gym", 4), sources: "NEMO_GYM" },
  { ...light("miles", 5), sources: "MILES" },
  { ...torch("slime", 5), sources: "SLIME" },
];

function environment(name: string, made: string): Environment {
  const folder = join(ROOT, ".cache", name);
  const missing = existsSync(join(folder, "installed")) ? null : `\`${made}\` makes what it needs`;
  return { python: join(folder, "bin", "python"), missing };
}

export interface Served {
  readonly url: string;
  readonly engine: "llama" | "vllm";
  /** A folder with other weights of the same model. */
  readonly weights: string;
  stop(): Promise<void>;
}

const TEST_MS_MAX = 600_000;

/** A test for each driver, against one server. `missing`: why it cannot be started; null: it can. */
export function testDrivers(
  drivers: readonly DriverTest[],
  server: { readonly missing: string | null; readonly start: () => Promise<Served> },
): void {
  let served: Served;
  beforeAll(async () => {
    if (server.missing === null) served = await server.start();
  }, TEST_MS_MAX);
  afterAll(async () => {
    if (server.missing === null) await served.stop();
  }, TEST_MS_MAX);
  for (const { name, steps, environment, sources } of drivers) {
    const lacks = sources !== undefined && (process.env[sources] ?? "") === "";
    const missing = lacks ? `${sources} names the folder of its sources` : environment.missing;
    const because = server.missing ?? missing;
    const testIf = because === null ? test : test.skip;
    testIf(
      `${name}: its own classes generate, take turns, abort and update weights${because === null ? "" : ` (skipped: ${because})`}`,
      async () => {
        expect(await drive(name, environment, served)).toBe(steps);
      },
      TEST_MS_MAX,
    );
  }
}

/** Runs test/clients/python/drive_NAME.py to its end; prints what it did. @throws Error with its last words. */
async function drive(name: string, { python }: Environment, served: Served): Promise<number> {
  const { url, engine, weights } = served;
  const options = ["--server", url, "--engine", engine, "--weights", weights];
  const driver = Bun.spawn([python, join(DRIVERS, `drive_${name}.py`), ...options], {
    cwd: DRIVERS,
    env: {
      ...process.env,
      CUDA_VISIBLE_DEVICES: "",
      TOKENIZERS_PARALLELISM: "false",
      PYTHONPATH: name === "trl" ? `${PACKAGE}:${STAND_IN_FOR_VLLM}` : PACKAGE,
    },
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
    timeout: DRIVER_MS_MAX,
  });
  const [stdout, stderr, status] = await Promise.all([
    new Response(driver.stdout).text(),
    new Response(driver.stderr).text(),
    driver.exited,
  ]);
  const lines = stdout.trim().split("\n");
  const summary = lines.pop() ?? "";
  if (status !== 0 || !summary.startsWith('{"trainer"')) {
    throw new Error(
      `${name} ended with ${status}:\n${stdout.slice(-1500)}\n${stderr.slice(-3000)}`,
    );
  }
  for (const line of lines.filter((text) => text.startsWith(`${name}: `))) console.log(line);
  return JSON.parse(summary).steps;
}

/** `foretoken serve --llama 2`, as its user starts it. */
export async function startEmbedded(): Promise<Served> {
  const model = join(ROOT, "model", "foretoken-3m-f16.gguf");
  const options = ["--llama", "2", "--chunk-tokens", "32", "--model", model];
  const server = await ToolProcess.serving(...options);
  const weights = scaledModel(0.9);
  const stop = async () => {
    server.signal("SIGTERM");
    await server.exited;
    rmSync(weights, { recursive: true, force: true });
  };
  return { url: server.url, engine: "llama", weights, stop };
}
