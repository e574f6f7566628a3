// What `foretoken doctor` finds of a server that is there.

import type { Diagnosis, Finding } from "../../src/tools/doctor/finding.ts";
import { foretoken } from "../e2e/tool.ts";

export async function examined(url: string): Promise<{ status: number; findings: Finding[] }> {
  const ran = await foretoken("doctor", url, "--json", "--quiet", "--samples", "2048");
  const { engines } = JSON.parse(ran.stdout) as { engines: Diagnosis[] };
  return { status: ran.status, findings: [...(engines[0]?.findings ?? [])] };
}

/** The checks that ended so. */
export function named(findings: readonly Finding[], verdict: Finding["verdict"]): string[] {
  return findings.filter((finding) => finding.verdict === verdict).map(({ check }) => check);
}
