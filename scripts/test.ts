// Runs every test and ends with one plain line: `N passed, N failed, N skipped`. Tests with real vLLM servers take
// minutes and two cores of their own: they are run only when they are asked for, with --vllm (nothing else) or
// --all. --clients runs trainers' own classes, with --vllm on real vLLM servers; --all runs those that need no torch,
// and installs the Python packages that its tests need, while the tests run that need none.
// --adversary runs the whole of every attack in test/faults/attacks, of which the others run a share. --packages builds
// the wheel and the npm package, installs them from the registries, and uses them.
// Further arguments are handed to `bun test`, so one kind of test can be run: `npm test -- .property.`

import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const root = join(import.meta.dir, "..");
const bun = process.execPath;
const VLLM_TESTS = "test/vllm";
const ADVERSARY_TESTS = "test/faults/attacks";
const CLIENT_TESTS = "test/clients";
/** --all runs them once their packages are installed. */
const PYTHON_TESTS = [
  `${CLIENT_TESTS}/light.test.ts`,
  `${CLIENT_TESTS}/agents.test.ts`,
  "test/e2e/grpo.e2e.test.ts",
];
const PACKAGE_TESTS = "test/packages";
/** They take a minute or more each, and repeat in part what others show: run with --vllm, not with --all. */
const LONG_VLLM_TESTS = ["bench", "plugin-servers", "priced"].map(
  (name) => `${VLLM_TESTS}/${name}.test.ts`,
);
/** ms for one test, on a machine that does other work too; a rollout, a restart and a start of two servers fit into the second. */
const TIMEOUT_MS = "180000";
/** Many tests wait for processes and deadlines: two files at a time take two thirds of the time. */
const SIDE_BY_SIDE = ["--parallel=2", "--no-isolate"];
const VLLM_TIMEOUT_MS = "600000";
const ADVERSARY_TIMEOUT_MS = "1800000";

/**
 * Reasons, in the name of a test or of its group, for which --all lets it be skipped: the machine does not permit it. Any other skipped test
 * is a failure there: what the project's own scripts install is present on the machines that run --all.
 */
const EXCUSED =
  /\(skipped: (root may write anywhere|needs root|needs Linux|needs Chromium|mounting a tmpfs)/;

interface Counts {
  readonly passed: number;
  readonly failed: number;
  readonly skipped: number;
}

/** Installs packages beside the tests; resolves to what the script prints, or "" where they cannot be installed. */
async function installed(script: string, ...args: string[]): Promise<string> {
  const command = [bun, join("scripts", script), ...args];
  const child = Bun.spawn(command, { cwd: root, stdout: "pipe", stderr: "inherit" });
  const told = await new Response(child.stdout).text();
  return (await child.exited) === 0 ? told.trim() : "";
}

function run(command: string[], environment: Record<string, string> = {}): number {
  const env = { ...process.env, ...environment };
  return Bun.spawnSync(command, { cwd: root, env, stdout: "inherit", stderr: "inherit" }).exitCode;
}

/** Sums an attribute of the report's root element. */
function count(xml: string, attribute: string): number {
  const head = /<testsuites\b[^>]*>/.exec(xml)?.[0] ?? "";
  return Number(new RegExp(`\\b${attribute}="(\\d+)"`).exec(head)?.[1] ?? "0");
}

function tested(args: string[], environment: Record<string, string> = {}): Counts {
  const scratch = mkdtempSync(join(tmpdir(), "foretoken-test-"));
  const results = join(scratch, "results.xml");
  // Of tests that pass only the sum is printed.
  const report = ["--only-failures", "--reporter=junit", `--reporter-outfile=${results}`];
  const exitCode = run([bun, "test", ...report, ...args], environment);
  let xml = "";
  try {
    xml = readFileSync(results, "utf8");
  } catch {
    // The runner died before it wrote its report: its exit code says so below.
  }
  rmSync(scratch, { recursive: true, force: true });
  const unexcused = isStrict ? skippedTests(xml).filter((name) => !EXCUSED.test(name)) : [];
  for (const name of unexcused) console.error(`skipped, although it could have run: ${name}`);
  const broken = count(xml, "failures") + count(xml, "errors");
  const skipped = count(xml, "skipped") - unexcused.length;
  const failed = broken + unexcused.length;
  const passed = count(xml, "tests") - failed - skipped;
  return { passed, skipped, failed: exitCode !== 0 && broken === 0 ? failed + 1 : failed };
}

function skippedTests(xml: string): string[] {
  const cases = xml.matchAll(/<testcase name="([^"]*)" classname="([^"]*)"[^>]*>\s*<skipped/g);
  return [...cases].map(([, name, group]) => `${group} > ${name}`);
}

const FLAGS = ["--vllm", "--all", "--adversary", "--clients", "--packages"];
const flags = process.argv.slice(2).filter((arg) => FLAGS.includes(arg));
const args = process.argv.slice(2).filter((arg) => !FLAGS.includes(arg));
/** A test that could have run and was skipped is a failure. */
const isStrict = flags.includes("--all");
const runs: Counts[] = [];
const builds = ["build-core.ts", "build-stream.ts"];
if (builds.some((build) => run([bun, join("scripts", build)]) !== 0)) {
  runs.push({ passed: 0, failed: 1, skipped: 0 });
} else if (flags.includes("--packages")) {
  runs.push(tested(["--timeout", VLLM_TIMEOUT_MS, `./${PACKAGE_TESTS}/`, ...args]));
} else if (flags.includes("--adversary")) {
  const timeout = ["--timeout", ADVERSARY_TIMEOUT_MS];
  const whole = { FORETOKEN_ADVERSARY: "all" };
  runs.push(tested([...timeout, `./${ADVERSARY_TESTS}/`, ...args], whole));
} else if (flags.includes("--clients")) {
  const [onEmbedded, onVllm] = [["light", "agents", "torch", "sources"], ["vllm"]];
  const kinds = flags.includes("--vllm") ? onVllm : onEmbedded;
  const files = kinds.map((kind) => `./${CLIENT_TESTS}/${kind}.test.ts`);
  runs.push(tested(["--timeout", VLLM_TIMEOUT_MS, ...files, ...args]));
} else {
  if (!flags.includes("--vllm")) {
    const { FORETOKEN_GRPO_PYTHON: given } = process.env;
    const packages = isStrict
      ? Promise.all([
          given ?? installed("grpo-install.ts"),
          installed("clients-install.ts"),
          installed("clients-install.ts", "--agents"),
        ])
      : null;
    const ignored = [
      `${VLLM_TESTS}/**`,
      `${PACKAGE_TESTS}/**`,
      `${CLIENT_TESTS}/**`,
      ...(isStrict ? PYTHON_TESTS : []),
    ];
    const others = ignored.flatMap((pattern) => ["--path-ignore-patterns", pattern]);
    const options = ["--timeout", TIMEOUT_MS, ...SIDE_BY_SIDE];
    runs.push(tested([...options, ...others, ...args]));
    if (packages !== null) {
      const [FORETOKEN_GRPO_PYTHON] = await packages;
      const files = PYTHON_TESTS.map((file) => `./${file}`);
      runs.push(tested([...options, ...files, ...args], { FORETOKEN_GRPO_PYTHON }));
    }
  }
  if (flags.length > 0) {
    // Waits for an installation that is under way.
    if (isStrict) run([bun, join("scripts", "vllm-install.ts"), "--no-suffix"]);
    const left = isStrict
      ? LONG_VLLM_TESTS.flatMap((path) => ["--path-ignore-patterns", path])
      : [];
    runs.push(tested(["--timeout", VLLM_TIMEOUT_MS, ...left, `./${VLLM_TESTS}/`, ...args]));
  }
}
const sum = (key: keyof Counts): number => runs.reduce((total, counts) => total + counts[key], 0);
console.log(`${sum("passed")} passed, ${sum("failed")} failed, ${sum("skipped")} skipped`);
process.exit(sum("failed") === 0 ? 0 : 1);
