// What the tests of trainers' own classes share: where their Python environments are, and how a driver is run.

import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { start } from "../e2e/tool.ts";
import { scaledModel } from "../vllm/other-weights.ts";

const ROOT = join(import.meta.dir, "..", "..");
const DRIVERS = join(import.meta.dir, "python");
/** verl takes the manager from the package. */
const PACKAGE = join(ROOT, "native", "foretoken_vllm", "src");
/** TRL imports names of vLLM that it does not use here. */
const STAND_IN_FOR_VLLM = join(ROOT, "examples", "grpo");
/** A driver that hangs fails by name, before the test's own limit. */
const DRIVER_MS_MAX = 240_000;

export interface Environment {
  readonly python: string;
  /** null: it is there; else what makes it. */
  readonly missing: string | null;
}

/** `npm run clients:install` makes it: no torch. */
export const LIGHT = environment("clients", "npm run clients:install");
/** With torch, TRL, AReaL and verl. */
export const TORCH = environment("clients-torch", "npm run clients:install -- --torch");

/** Drivers by environment, and the steps of each. */
export const LIGHT_DRIVERS = {
  renderers: 3,
  verifiers: 4,
  agentlightning: 4,
  verl_server: 2,
  skyrl: 9,
} as const;
export const TORCH_DRIVERS = { trl: 3, areal: 2, verl: 2 } as const;

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
}

/** Runs test/clients/python/drive_NAME.py to its end; prints what it did. @throws Error with its last words. */
export async function drive(
  name: string,
  { python }: Environment,
  served: Served,
): Promise<number> {
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

export interface EmbeddedServer extends Served {
  stop(): Promise<void>;
}

/** `foretoken serve --llama 2`, as its user starts it. */
export async function startEmbedded(): Promise<EmbeddedServer> {
  const model = join(ROOT, "model", "foretoken-3m-f16.gguf");
  const options = ["--llama", "2", "--chunk-tokens", "32", "--model", model, "--port", "0"];
  const server = start(["serve", ...options]);
  const url = await listening(server.stdout);
  const weights = scaledModel(0.9);
  const stop = async () => {
    server.kill("SIGTERM");
    await server.exited;
    rmSync(weights, { recursive: true, force: true });
  };
  return { url, engine: "llama", weights, stop };
}

async function listening(stdout: ReadableStream<Uint8Array>): Promise<string> {
  let text = "";
  for await (const piece of stdout) {
    text += new TextDecoder().decode(piece);
    const url = /foretoken on (http:\S+)/.exec(text)?.[1];
    if (url !== undefined) return url;
  }
  throw new Error(`the sidecar did not start: ${text}`);
}
