import { basename, join } from "node:path";
import { parseArgs } from "node:util";
import { type CellResult, runCell } from "../../src/tools/replay/cell.ts";
import type { TraceGroup } from "../../src/tools/replay/recordings.ts";
import { readGroups } from "../../src/tools/replay/recordings.ts";
import { REPLAY_MODES, type ReplayMode } from "../../src/tools/replay/replay.ts";
import { writeReport } from "../harness.ts";
import { hasPeer, peerMissing } from "../peer.ts";
import { bisect } from "./threshold.ts";

const NO_PEER_STATUS = 3;
const BUDGET = 16;
/** Drafted tokens are equal to within this part. */
const TOLERANCE = 0.005;
const RUNS_MAX = 14;
/** Requests that vLLM's `suffix` method caches. */
const PEER_CACHED_REQUESTS = 10_000;
const DRIVER = join(import.meta.dir, "peer_replay.py");

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    python: { type: "string", default: "python3" },
    mode: { type: "string", default: "concurrent" },
    responses: { type: "string" },
    "limit-groups": { type: "string" },
    live: { type: "string", default: "8" },
    depth: { type: "string", default: "24" },
    factor: { type: "string", default: "1" },
    offset: { type: "string", default: "0" },
    "min-prob": { type: "string", default: "0.1" },
    order: { type: "string", default: "serial" },
    scope: { type: "string", default: "engine" },
    json: { type: "string" },
  },
});

/** The driver's output. */
interface PeerSums {
  readonly steps: number;
  readonly tokens: number;
  readonly drafted: number;
  readonly accepted: number;
  readonly cpu_s: number;
}

interface Row {
  readonly file: string;
  readonly mode: ReplayMode;
  readonly who: string;
  readonly accepted_plus_1: number;
  /** accepted_plus_1 against the peer's path. */
  readonly ratio: number;
  readonly drafted_per_step: number;
  readonly accepted_per_drafted: number;
  readonly us_per_token: number;
  readonly ci95: CellResult["ci95"];
  readonly ece: number | null;
}

function modeOf(text: string): ReplayMode {
  const mode = REPLAY_MODES.find((known) => known === text);
  if (mode === undefined) throw new Error(`--mode is ${text}; it is one of ${REPLAY_MODES}`);
  return mode;
}

/** Both sides read the same groups from here. */
async function* groupsOf(file: string): AsyncGenerator<TraceGroup> {
  const responsesMax = values.responses === undefined ? Infinity : Number(values.responses);
  const groupsMax = values["limit-groups"];
  for await (const group of readGroups(file, groupsMax === undefined ? null : Number(groupsMax))) {
    yield { ...group, responses: group.responses.slice(0, responsesMax) };
  }
}

async function peerSums(file: string, mode: ReplayMode): Promise<PeerSums> {
  const flags = ["--mode", mode, "--order", values.order, "--live", values.live];
  flags.push("--scope", values.scope);
  flags.push("--depth", values.depth, "--cached", String(PEER_CACHED_REQUESTS));
  flags.push("--budget", String(BUDGET), "--factor", values.factor, "--offset", values.offset);
  flags.push("--min-prob", values["min-prob"]);
  const child = Bun.spawn([values.python, DRIVER, ...flags], {
    stdin: "pipe",
    stdout: "pipe",
    stderr: "inherit",
  });
  for await (const { prompt, responses } of groupsOf(file)) {
    const lists = responses.map((response) => `[${response.join(",")}]`).join(",");
    child.stdin.write(`{"prompt":[${prompt.join(",")}],"responses":[${lists}]}\n`);
    await child.stdin.flush();
  }
  await child.stdin.end();
  const text = await new Response(child.stdout).text();
  if ((await child.exited) !== 0) throw new Error("the peer's replay failed");
  return JSON.parse(text) as PeerSums;
}

function peerRow(file: string, mode: ReplayMode, sums: PeerSums): Row {
  return {
    file: basename(file),
    mode,
    who: "arctic-inference, path",
    accepted_plus_1: 1 + sums.accepted / sums.steps,
    ratio: 1,
    drafted_per_step: sums.drafted / sums.steps,
    accepted_per_drafted: sums.accepted / sums.drafted,
    us_per_token: (sums.cpu_s * 1e6) / sums.tokens,
    ci95: null,
    ece: null,
  };
}

async function ourRow(drafter: "grouped" | "tree", peer: Row, file: string): Promise<Row> {
  const { mode, drafted_per_step: perStep } = peer;
  const cell = { file, drafter, mode, siblings: null, budget: BUDGET, live: Number(values.live) };
  const { outcome: result } = await bisect(
    async (probabilityMin) => {
      const outcome = await runCell(groupsOf(file), { ...cell, probabilityMin });
      return { outcome, drafted: outcome.drafted_per_step };
    },
    { wanted: perStep, tolerance: TOLERANCE, runsMax: RUNS_MAX },
  );
  return {
    file: basename(file),
    mode,
    who: drafter === "tree" ? "foretoken, tree" : "foretoken, path",
    accepted_plus_1: result.accepted_plus_1,
    ratio: result.accepted_plus_1 / peer.accepted_plus_1,
    drafted_per_step: result.drafted_per_step,
    accepted_per_drafted: result.accepted_per_drafted,
    us_per_token: result.us_per_token,
    ci95: result.ci95,
    ece: result.ece,
  };
}

function print(row: Row): void {
  const interval = row.ci95 === null ? "" : row.ci95.map((bound) => bound.toFixed(3)).join("-");
  const cells = [
    row.who.padEnd(24),
    row.accepted_plus_1.toFixed(3).padStart(13),
    `${row.ratio.toFixed(3)}x`.padStart(8),
    interval.padStart(13),
    row.drafted_per_step.toFixed(2).padStart(9),
    row.accepted_per_drafted.toFixed(3).padStart(10),
    row.us_per_token.toFixed(2).padStart(9),
    (row.ece === null ? "" : row.ece.toFixed(3)).padStart(7),
  ];
  console.log(cells.join(""));
}

async function main(): Promise<number> {
  const mode = modeOf(values.mode);
  if (positionals.length === 0) throw new Error("name at least one file of traces");
  if (!hasPeer(values.python)) {
    console.error(peerMissing(values.python));
    return NO_PEER_STATUS;
  }
  const rows: Row[] = [];
  for (const file of positionals) {
    const peer = peerRow(file, mode, await peerSums(file, mode));
    console.log(`\n${peer.file}, ${mode}`);
    console.log(
      "                         accepted + 1   ratio 95% interval  drafted  accepted  us/token    ECE",
    );
    print(peer);
    rows.push(peer);
    for (const drafter of ["grouped", "tree"] as const) {
      const ours = await ourRow(drafter, peer, file);
      print(ours);
      rows.push(ours);
    }
  }
  writeReport(values.json, { options: values, results: rows });
  return 0;
}

process.exitCode = await main();
