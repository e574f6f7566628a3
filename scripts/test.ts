// Runs every test and ends with one plain line: `N passed, N failed, N skipped`.
// Arguments are handed to `bun test`, so one kind of test can be run: `npm test -- .property.`

import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const root = join(import.meta.dir, "..");
const scratch = mkdtempSync(join(tmpdir(), "foretoken-test-"));
const results = join(scratch, "results.xml");

function run(command: string[]): number {
  return Bun.spawnSync(command, { cwd: root, stdout: "inherit", stderr: "inherit" }).exitCode;
}

/** Sums an attribute of the report's root element. */
function count(xml: string, attribute: string): number {
  const head = /<testsuites\b[^>]*>/.exec(xml)?.[0] ?? "";
  return Number(new RegExp(`\\b${attribute}="(\\d+)"`).exec(head)?.[1] ?? "0");
}

const bun = process.execPath;
let exitCode = run([bun, join("scripts", "build-core.ts")]);
let [passed, failed, skipped] = [0, exitCode === 0 ? 0 : 1, 0];
if (exitCode === 0) {
  const report = ["--reporter=junit", `--reporter-outfile=${results}`];
  exitCode = run([bun, "test", "--timeout", "60000", ...report, ...process.argv.slice(2)]);
  let xml = "";
  try {
    xml = readFileSync(results, "utf8");
  } catch {
    // The runner died before it wrote its report: its exit code says so below.
  }
  skipped = count(xml, "skipped");
  failed = count(xml, "failures") + count(xml, "errors");
  passed = count(xml, "tests") - failed - skipped;
  if (exitCode !== 0 && failed === 0) failed = 1;
}
rmSync(scratch, { recursive: true, force: true });
console.log(`${passed} passed, ${failed} failed, ${skipped} skipped`);
process.exit(exitCode === 0 && failed === 0 ? 0 : 1);
