// What the tests of trainers' own classes share: where their Python environments are, and how a driver is run.

import { existsSync } from "node:fs";
import { join } from "node:path";

const ROOT = join(import.meta.dir, "..", "..");
const DRIVERS = join(import.meta.dir, "python");
/** A driver that hangs fails by name, before the test's own limit. */
const DRIVER_MS_MAX = 240_000;

export interface Environment {
  readonly python: string;
  /** null: it is there; else what makes it. */
  readonly missing: string | null;
}

/** `npm run clients:install` makes it: no torch. */
export const LIGHT = environment("clients", "npm run clients:install");

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
    env: { ...process.env, CUDA_VISIBLE_DEVICES: "", TOKENIZERS_PARALLELISM: "false" },
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
