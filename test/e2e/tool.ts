// Runs the command-line tool as its user would: as a process of its own.

import { join, resolve } from "node:path";
import { locateLibrary } from "../../src/engines/llama/platform.ts";

export const ROOT = resolve(import.meta.dir, "..", "..");
export const PROMPTS = join(ROOT, "model", "prompts.jsonl");

/** null, or why the embedded engine cannot run here. */
export function engineMissing(): string | null {
  try {
    locateLibrary();
    return null;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

export interface Ended {
  readonly status: number;
  readonly stdout: string;
  readonly stderr: string;
}

export const MAIN = join(ROOT, "src", "main.ts");

export function start(args: readonly string[], env: Readonly<Record<string, string>> = {}) {
  return spawn([join(ROOT, "src", "main.ts"), ...args], env);
}

/** Runs a program on this runtime; flags of the runtime go first. */
export function spawn(args: readonly string[], env: Readonly<Record<string, string>> = {}) {
  return Bun.spawn([process.execPath, ...args], {
    env: { ...process.env, ...env },
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
  });
}

export async function ended(child: ReturnType<typeof start>): Promise<Ended> {
  const [stdout, stderr, status] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  return { status, stdout, stderr };
}

export async function foretoken(...args: string[]): Promise<Ended> {
  return await ended(start(args));
}
