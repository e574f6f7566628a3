// Runs `foretoken doctor` and `foretoken serve` as their user would, against a server that is there.

import { join } from "node:path";
import type { Diagnosis, Finding } from "../../src/tools/doctor/finding.ts";
import { ROOT } from "./fleet.ts";

export interface Ran {
  readonly status: number;
  readonly output: string;
  readonly errors: string;
}

export async function foretoken(...args: readonly string[]): Promise<Ran> {
  const child = Bun.spawn([process.execPath, join(ROOT, "src", "main.ts"), ...args], {
    cwd: ROOT,
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
  });
  const [output, errors] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
  ]);
  return { status: await child.exited, output, errors };
}

export async function examined(url: string): Promise<{ status: number; findings: Finding[] }> {
  const ran = await foretoken("doctor", url, "--json", "--quiet", "--samples", "2048");
  const { engines } = JSON.parse(ran.output) as { engines: Diagnosis[] };
  return { status: ran.status, findings: [...(engines[0]?.findings ?? [])] };
}

/** The checks that ended so. */
export function named(findings: readonly Finding[], verdict: Finding["verdict"]): string[] {
  return findings.filter((finding) => finding.verdict === verdict).map(({ check }) => check);
}
