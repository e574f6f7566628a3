// The measured parts of README.md, made from the reports in docs/experiments: `bun scripts/gen-readme.ts` writes them, and
// test/docs.test.ts holds them. `bun scripts/gen-readme.ts start=out/report.json` takes a new report first, without its
// time series, of which it draws README's picture; the names are those of REPORTS.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { stripVTControlCharacters } from "node:util";
import type { WorkloadReport } from "../bench/lab/simulate/experiment.ts";
import { areEqual, type RoundsReport, speedups } from "../src/cli/rounds.ts";
import { comparisonTable } from "../src/cli/table.ts";
import { figureOf } from "../src/observe/picture/figure.ts";
import { headlineOf } from "../src/observe/picture/page.ts";
import { picture } from "../src/observe/picture/svg.ts";

const ROOT = join(import.meta.dir, "..");
const README = join(ROOT, "README.md");
const REPORTS = ["start", "vllm-priced", "simulated", "gpu"] as const;
type ReportName = (typeof REPORTS)[number];

const pathOf = (name: ReportName): string => join(ROOT, "docs", "experiments", `${name}.json`);
const read = (name: ReportName) => JSON.parse(readFileSync(pathOf(name), "utf8"));

interface StartReport {
  readonly runs: Record<string, RoundsReport>;
  readonly seed: number;
  readonly host: { readonly cpu: string; readonly cores: number };
}

/** Rows of the closing table that README shows. */
const SHOWN =
  /^(?: {3,}|─|drafts |wall time|tail time|engine time|output tokens |preemptions|recomputed|tokens per step)/;

function consoleRun(): string {
  const { runs, seed, host } = read("start") as StartReport;
  const [, table = ""] = stripVTControlCharacters(comparisonTable(runs)).split("\n\n");
  const lines = table.split("\n").filter((line) => SHOWN.test(line));
  const said = speedups(runs).join("\n");
  const made = `Seed ${seed}, on ${host.cores} cores of ${host.cpu}.`;
  const head = ["```console", "$ npm install && npm start", "..."];
  return [...head, ...lines, "...", said, "```", "", made].join("\n");
}

const ratioText = (values: readonly number[]): string => {
  const mean = Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length);
  const [low, high] = [Math.min(...values), Math.max(...values)].map((value) => value.toFixed(2));
  return values.length === 1 ? `${mean.toFixed(2)} x` : `${mean.toFixed(2)} x (${low} to ${high})`;
};

/** Rows of wall and tail ratios by rounds: geometric means, least and most. */
function ratioRow(
  where: string,
  against: string,
  base: readonly { wall_s: number; tail_s: number }[],
  of: readonly { wall_s: number; tail_s: number }[],
): string {
  const ratios = (key: "wall_s" | "tail_s") =>
    ratioText(of.map((round, i) => (base[i]?.[key] ?? Number.NaN) / round[key]));
  return `| ${where} | ${against} | ${ratios("wall_s")} | ${ratios("tail_s")} |`;
}

function measuredTable(): string {
  const rows = [
    "| on two CPU cores, but for the last row | against | wall time | tail time |",
    "|---|---|---|---|",
  ];
  const { runs, seed, host } = read("start") as StartReport;
  const [[baseName, base] = ["", undefined], ...others] = Object.entries(runs);
  for (const [name, run] of others) {
    const where = `two embedded engines, the run above: \`${name}\``;
    rows.push(ratioRow(where, `\`${baseName}\` (as veRL)`, base?.rounds ?? [], run.rounds));
  }
  const { systems, conditions } = read("vllm-priced");
  for (const [system, against] of [
    ["plain", "plain vLLM"],
    ["suffix", "vLLM with suffix decoding"],
  ] as const) {
    const where =
      "two vLLM servers on CPU, memory-bound steps, KV short, plugin and KV pool ([conditions](docs/experiments/vllm-priced.md))";
    rows.push(
      ratioRow(where, against, systems[system].rounds, systems.foretoken_plugin_pool.rounds),
    );
  }
  const { tokens_per_s: speeds, gpu } = read("gpu") as {
    tokens_per_s: Record<string, number[]>;
    gpu: string;
  };
  const { plain = [], plugin_always_8: drafted = [] } = speeds;
  const ratios = ratioText(plain.map((speed, i) => (drafted[i] ?? Number.NaN) / speed));
  const where =
    "one H100, an 8 B model's price, plugin with 8 draft tokens, 1, 8 and 32 requests, no sidecar ([conditions](docs/experiments/gpu.md))";
  rows.push(`| ${where} | plain vLLM | ${ratios} tokens/s | not measured |`);
  const made = [
    `1 and 2 by \`npm start\`, seed ${seed}, on ${host.cores} cores of ${host.cpu}`,
    `3 and 4 by \`npm run bench:vllm -- --priced\`, seed ${conditions.seed}, on ${conditions.cores} cores of ${conditions.cpu}`,
    `5 by \`npm run bench:gpu\`, a seed for each response, on ${gpu}`,
  ];
  return `${rows.join("\n")}\n\nThe rows are made: ${made.join("; ")}.`;
}

function simulatedTable(): string {
  const { workloads, command } = read("simulated") as {
    workloads: Readonly<Record<string, WorkloadReport>>;
    command: string;
  };
  const names = ["divided", "seer", "foretoken"] as const;
  const rows = Object.entries(workloads).map(([workload, { systems }]) => {
    const cells = names.map((name) => {
      const { speedup_over_verl: ratio, published_speedup: paper } = systems[name] ?? {};
      if (ratio === undefined) return "-";
      return `${ratio.toFixed(2)} x${paper == null ? "" : ` (paper ${paper.toFixed(2)})`}`;
    });
    return `| ${workload} | ${cells.join(" | ")} |`;
  });
  const head = `| simulated, 32 nodes, throughput over veRL | ${names.join(" | ")} |`;
  const [seeds] = Object.values(workloads).map((workload) => workload.seeds);
  const made = `Made by \`${command}\`, seeds 1 to ${seeds}: the same on every machine.`;
  const table = [head, `|---|${names.map(() => "---").join("|")}|`, ...rows].join("\n");
  return `${table}\n\n${made}`;
}

const PICTURE = join("docs", "start.svg");

function pictureLine(): string {
  const [, headline = ""] =
    /aria-label="(.*?)"/.exec(readFileSync(join(ROOT, PICTURE), "utf8")) ?? [];
  return `![${headline}](${PICTURE})`;
}

function drawPicture({ runs }: Pick<StartReport, "runs">): void {
  const figures = Object.entries(runs).map(([name, run]) => figureOf({ ...run, name }));
  const headline = headlineOf(Object.values(runs), areEqual(runs));
  writeFileSync(join(ROOT, PICTURE), `${picture(headline, figures)}\n`);
}

const BLOCKS = {
  picture: pictureLine,
  run: consoleRun,
  measured: measuredTable,
  simulated: simulatedTable,
};

/** README as it should be: each block between `<!-- NAME -->` and `<!-- /NAME -->` made anew. */
export function madeReadme(text: string): string {
  return Object.entries(BLOCKS).reduce((made, [name, block]) => {
    const [open, close] = [`<!-- ${name} -->`, `<!-- /${name} -->`];
    const [from, to] = [made.indexOf(open), made.indexOf(close)];
    if (from < 0 || to < from) throw new Error(`README.md has no ${open} ... ${close}`);
    return `${made.slice(0, from + open.length)}\n${block()}\n${made.slice(to)}`;
  }, text);
}

/** Series and steps are for pictures, and long. */
const LEFT_OUT = new Set(["timeline", "account", "steps_by_rows"]);

if (import.meta.main) {
  for (const arg of process.argv.slice(2)) {
    const [name, path = ""] = arg.split("=");
    const known = REPORTS.find((one) => one === name);
    if (known === undefined)
      throw new Error(`${arg}: NAME=FILE, NAME one of ${REPORTS.join(", ")}`);
    // Paths of the machine that measured are left out too.
    const isPath = (value: unknown): boolean => typeof value === "string" && value.startsWith("/");
    const report = JSON.parse(readFileSync(path, "utf8"), (key, value) =>
      LEFT_OUT.has(key) || isPath(value) ? undefined : value,
    );
    writeFileSync(pathOf(known), `${JSON.stringify(report, null, 1)}\n`);
    if (known === "start") drawPicture(JSON.parse(readFileSync(path, "utf8")));
  }
  writeFileSync(README, madeReadme(readFileSync(README, "utf8")));
}
