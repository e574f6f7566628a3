// `npm run chaos` as its user runs it: a few seeds. All of them are `npm run chaos -- --seeds 1000`.

import { expect, setDefaultTimeout, test } from "bun:test";
import { chmodSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ended } from "../e2e/tool.ts";
import { temporaryFolder } from "../suite/temporary-folder.ts";
import { ToolProcess } from "./process.ts";

setDefaultTimeout(600_000);

const CHAOS = [process.execPath, join(import.meta.dir, "chaos.ts")];
const chaos = (...args: string[]) =>
  Bun.spawn([...CHAOS, ...args], { stdin: "ignore", stdout: "pipe", stderr: "pipe" });

const folder = temporaryFolder("chaos-test");

/** A `vllm` command: its interpreter says the version, or runs the stand-in. */
function standInVllm(): string {
  const program = join(import.meta.dir, "stand-in", "program.ts");
  const write = (name: string, text: string) => {
    const path = join(folder, name);
    writeFileSync(path, text);
    chmodSync(path, 0o755);
    return path;
  };
  const python = write(
    "python",
    `#!/bin/sh\n[ "$1" = -c ] && exec echo 0.32.0+cpu\nexec "${process.execPath}" "${program}" "$@"\n`,
  );
  return write("vllm", `#!${python}\n`);
}

interface Report {
  readonly faults: number;
  readonly responses: number;
  readonly kinds: Readonly<Record<string, unknown>>;
}

/** Runs again while a rollout was over before its faults were due, as it may be where the run stands still meanwhile. */
async function reportOf(kinds: string[], args: string[], hasBegun: (report: Report) => boolean) {
  for (let run = 1; ; run += 1) {
    const all = [...args, "--json", ...kinds.flatMap((kind) => ["--fault", kind])];
    const { status, stdout, stderr } = await ended(chaos(...all));
    const problems = stderr.split("\n").filter((line) => !line.includes("rollouts,"));
    expect({ status, problems: status === 0 ? [] : problems }).toEqual({ status: 0, problems: [] });
    const report = JSON.parse(stdout);
    expect(report).toMatchObject({ lost: 0, twice: 0, wrong: 0, failed_seeds: [] });
    if (hasBegun(report) || run === 5) return report as Report;
  }
}

test("chaos: no response is lost, repeated or changed, and the sums say so", async () => {
  const kinds = ["sidecar_kill", "worker_kill", "worker_stop", "link_cut"];
  const report = await reportOf(kinds, ["--seeds", "2"], ({ faults }) => faults > 1);
  expect(report).toMatchObject({ rollouts: 2, responses: 12 });
  expect(report.faults).toBeGreaterThan(1);
});

test("chaos --vllm: servers are killed and updated, and every token has the model's logprob", async () => {
  const kinds = ["worker_kill", "weights"];
  const args = ["--vllm", standInVllm(), "--seed", "3", "--seeds", "1"];
  const report = await reportOf(kinds, args, (one) => Object.keys(one.kinds).length === 2);
  expect(report).toMatchObject({ rollouts: 1, responses: 6 });
  expect(Object.keys(report.kinds)).toEqual(kinds);
});

test("chaos: an unknown fault is refused, and a signal ends every process", async () => {
  const refused = await ended(chaos("--fault", "meteor"));
  expect([refused.status, refused.stderr]).toEqual([2, expect.stringContaining("worker_kill")]);
  const child = new ToolProcess(["--seeds", "1000000"], { program: CHAOS });
  // A seed is under way: the line of progress names the rollouts.
  await child.said(/rollouts/);
  child.signal("SIGTERM");
  expect(await child.exited).toBe(130);
});
