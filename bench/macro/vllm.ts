// Four ways to make the same rollout on two real vLLM servers, in turn, in one run: plain vLLM with groups dealt
// out round-robin, as trainers do; the same with vLLM's own `suffix` drafts; Foretoken in front of plain servers;
// Foretoken with its plugin inside them. Every response is a request of its own, all of them sent at once.
//
// Systems that draft draw other texts from the same seeds. So that they have the same work, each response is as
// long everywhere as plain vLLM made it in a run before, not counted: the model's end of text ends nothing.
//
//   npm run bench:vllm -- [--rounds N] [--groups N] [--siblings N] [--max-tokens N] [--max-num-seqs N]
//                         [--kv-blocks N] [--chunk-tokens N] [--report FILE]
//
// On a CPU, vLLM's drafts at a temperature above 0 are not lossless (docs/VLLM.md): `suffix` runs with the plugin's
// repair of that, else its text would be noise.

import { writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import Table from "cli-table3";
import { readMetrics, type ServerCounters } from "../../src/worker/vllm/metrics.ts";
import { Fleet, MODEL, promptIds, vllmMissing } from "../../test/vllm/fleet.ts";
import { conditions, SEED } from "../harness.ts";

const SYSTEMS = ["plain", "suffix", "foretoken_http", "foretoken_plugin"] as const;
type SystemName = (typeof SYSTEMS)[number];

const SUFFIX = { method: "suffix", num_speculative_tokens: 16 };
const CLOCK = ["--worker-extension-cls", "vllm_clock.ProposeClock"];
/** The tail: the last tenth of the requests (Seer, section 4.2). */
const TAIL_PART = 0.1;

interface System {
  readonly fleet: Fleet;
  /** null: requests go to the sidecar; else to the servers themselves, groups in turn. */
  readonly direct: readonly string[] | null;
  /** Its servers draft, and their drafting is clocked. */
  readonly drafts: boolean;
}

interface Sizes {
  readonly rounds: number;
  readonly groups: number;
  readonly siblings: number;
  readonly maxTokens: number;
}

/** The requests of one iteration. */
interface Workload {
  readonly prompts: readonly number[][];
  readonly seed: number;
  /** Of each response, group after group; null: until the model ends it. */
  readonly lengths: readonly number[] | null;
}

interface Run {
  /** Tokens of each response, group after group. */
  readonly lengths: readonly number[];
  readonly wallS: number;
  readonly tailS: number;
  readonly outputTokens: number;
  readonly counters: ServerCounters;
  readonly proposeUs: number;
}

interface Figures {
  readonly wall_s: number;
  readonly tail_s: number;
  readonly output_tokens: number;
  readonly output_tokens_per_s: number;
  /** Output tokens of a request in a step: 1 without drafts. */
  readonly tokens_per_step: number;
  readonly engine_steps: number;
  readonly prompt_tokens: number;
  readonly preemptions: number;
  readonly drafted_tokens: number;
  readonly accepted_tokens: number;
  /** CPU of the step's own thread; null: nothing proposes. */
  readonly propose_us_per_token: number | null;
  readonly rounds: readonly { readonly wall_s: number; readonly tail_s: number }[];
}

function engineArgs(values: { "max-num-seqs": string; "kv-blocks": string }): string[] {
  return [
    ...["--max-num-seqs", values["max-num-seqs"]],
    ...(values["kv-blocks"] === "0" ? [] : ["--num-gpu-blocks-override", values["kv-blocks"]]),
  ];
}

/** Starts three pairs of servers: plain ones serve two of the systems. */
async function start(
  up: readonly string[],
  engine: readonly string[],
): Promise<Map<SystemName, System>> {
  process.env.PYTHONPATH = import.meta.dir;
  const say = (what: string) => console.error(`starting two servers: ${what}`);
  say("plain");
  const plain = await Fleet.up([...up, "--", ...engine]);
  say("suffix");
  process.env.FORETOKEN_REPAIR = "1";
  const config = JSON.stringify(SUFFIX);
  const suffix = await Fleet.up([...up, "--", ...engine, ...CLOCK, "--speculative-config", config]);
  delete process.env.FORETOKEN_REPAIR;
  say("with the plugin");
  const plugin = await Fleet.up([...up, "--plugin", "--", ...engine, ...CLOCK]);
  for (const { url } of [...suffix.servers, ...plugin.servers]) await clock(url, "start");
  const urls = (fleet: Fleet) => fleet.servers.map(({ url }) => url);
  return new Map<SystemName, System>([
    ["plain", { fleet: plain, direct: urls(plain), drafts: false }],
    ["suffix", { fleet: suffix, direct: urls(suffix), drafts: true }],
    ["foretoken_http", { fleet: plain, direct: null, drafts: false }],
    ["foretoken_plugin", { fleet: plugin, direct: null, drafts: true }],
  ]);
}

async function post(url: string, body: object): Promise<unknown> {
  const answer = await fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  if (!answer.ok) throw new Error(`${url}: ${answer.status} ${await answer.text()}`);
  return await answer.json();
}

async function clock(server: string, verb: "start" | "read"): Promise<unknown> {
  return await post(`${server}/collective_rpc`, { method: `propose_clock_${verb}` });
}

async function countersOf({ fleet, drafts }: System): Promise<{ sum: ServerCounters; us: number }> {
  let sum: ServerCounters | null = null;
  let us = 0;
  for (const { url } of fleet.servers) {
    const { counters } = readMetrics(await (await fetch(`${url}/metrics`)).text());
    sum = sum === null ? counters : combined(sum, counters, 1);
    if (!drafts) continue;
    const { results } = (await clock(url, "read")) as { results: [number, number][] };
    us += results[0]?.[0] ?? 0;
  }
  if (sum === null) throw new Error("there is no server");
  return { sum, us };
}

function combined(a: ServerCounters, b: ServerCounters, sign: 1 | -1): ServerCounters {
  const keys = Object.keys(a) as (keyof ServerCounters)[];
  const entries = keys.map((key) => [key, a[key] + sign * b[key]]);
  return Object.fromEntries(entries) as Record<keyof ServerCounters, number>;
}

/** One iteration: all responses of all groups, each a request of its own. */
async function iteration(
  system: System,
  { prompts, seed, lengths }: Workload,
  sizes: Sizes,
): Promise<Run> {
  const before = await countersOf(system);
  const finishedMs: number[] = [];
  const startMs = performance.now();
  const requests = prompts.flatMap((prompt, group) =>
    Array.from({ length: sizes.siblings }, async (_, index) => {
      const response = group * sizes.siblings + index;
      const base = system.direct?.[group % system.direct.length] ?? system.fleet.url;
      const answer = (await post(`${base}/v1/completions`, {
        model: MODEL,
        prompt,
        max_tokens: lengths?.[response] ?? sizes.maxTokens,
        ignore_eos: lengths !== null,
        temperature: 1,
        seed: seed + response,
        logprobs: 0,
        return_token_ids: true,
      })) as { usage: { completion_tokens: number } };
      finishedMs.push(performance.now() - startMs);
      return answer.usage.completion_tokens;
    }),
  );
  const made = await Promise.all(requests);
  const after = await countersOf(system);
  const sorted = finishedMs.toSorted((a, b) => a - b);
  const wallMs = sorted.at(-1) ?? 0;
  const tailFromMs = sorted[Math.ceil(sorted.length * (1 - TAIL_PART)) - 1] ?? 0;
  return {
    lengths: made,
    wallS: wallMs / 1000,
    tailS: (wallMs - tailFromMs) / 1000,
    outputTokens: made.reduce((sum, tokens) => sum + tokens, 0),
    counters: combined(after.sum, before.sum, -1),
    proposeUs: after.us - before.us,
  };
}

function figures(runs: readonly Run[], drafts: boolean): Figures {
  const total = (value: (run: Run) => number) => runs.reduce((sum, run) => sum + value(run), 0);
  const counted = (key: keyof ServerCounters) => total((run) => run.counters[key]);
  const outputTokens = total((run) => run.outputTokens);
  const accepted = counted("acceptedTokens");
  const generated = counted("generationTokens");
  return {
    wall_s: total((run) => run.wallS) / runs.length,
    tail_s: total((run) => run.tailS) / runs.length,
    output_tokens: outputTokens,
    output_tokens_per_s: outputTokens / total((run) => run.wallS),
    tokens_per_step: generated / Math.max(1, generated - accepted),
    engine_steps: counted("steps"),
    prompt_tokens: counted("promptTokens"),
    preemptions: counted("preemptions"),
    drafted_tokens: counted("draftedTokens"),
    accepted_tokens: accepted,
    propose_us_per_token: drafts ? total((run) => run.proposeUs) / outputTokens : null,
    rounds: runs.map(({ wallS, tailS }) => ({ wall_s: wallS, tail_s: tailS })),
  };
}

type Span = "wall_s" | "tail_s";

/** How many times as long `base` took, by round. */
function ratios(base: Figures, of: Figures, key: Span): number[] {
  return of.rounds.map((round, i) => (base.rounds[i]?.[key] ?? Number.NaN) / round[key]);
}

function geometricMean(values: readonly number[]): number {
  return Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length);
}

/** Of the two systems that draft: the mean, the least and the most. */
function pluginOverSuffix(found: ReadonlyMap<SystemName, Figures>): Record<Span, number[]> {
  const [suffix, plugin] = [found.get("suffix"), found.get("foretoken_plugin")];
  if (suffix === undefined || plugin === undefined) throw new Error("both were run");
  const of = (key: Span): number[] => {
    const all = ratios(suffix, plugin, key);
    return [geometricMean(all), Math.min(...all), Math.max(...all)];
  };
  return { wall_s: of("wall_s"), tail_s: of("tail_s") };
}

function tableOf(found: ReadonlyMap<SystemName, Figures>): string {
  const table = new Table({
    head: [
      "",
      "wall s",
      "x plain",
      "tail s",
      "x plain",
      "tokens/s",
      "tokens/step",
      "drafted",
      "accepted",
      "propose us/token",
      "preempted",
      "prefilled",
    ],
    style: { head: [], border: [] },
    colAligns: ["left", ...Array.from({ length: 11 }, () => "right" as const)],
  });
  const plain = found.get("plain");
  for (const [name, of] of found) {
    const times = (key: Span) =>
      plain === undefined ? "" : geometricMean(ratios(plain, of, key)).toFixed(2);
    table.push([
      name,
      of.wall_s.toFixed(2),
      times("wall_s"),
      of.tail_s.toFixed(2),
      times("tail_s"),
      of.output_tokens_per_s.toFixed(0),
      of.tokens_per_step.toFixed(2),
      String(of.drafted_tokens),
      String(of.accepted_tokens),
      of.propose_us_per_token?.toFixed(2) ?? "-",
      String(of.preemptions),
      String(of.prompt_tokens),
    ]);
  }
  return table.toString();
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      rounds: { type: "string", default: "3" },
      groups: { type: "string", default: "16" },
      siblings: { type: "string", default: "8" },
      "max-tokens": { type: "string", default: "1024" },
      "max-num-seqs": { type: "string", default: "32" },
      "kv-blocks": { type: "string", default: "0" },
      "chunk-tokens": { type: "string" },
      report: { type: "string" },
    },
  });
  const missing = vllmMissing();
  if (missing !== null) throw new Error(missing);
  const sizes = {
    rounds: Number(values.rounds),
    groups: Number(values.groups),
    siblings: Number(values.siblings),
    maxTokens: Number(values["max-tokens"]),
  };
  const chunk = values["chunk-tokens"];
  const up = ["--workers", "2", ...(chunk === undefined ? [] : ["--chunk-tokens", chunk])];
  const systems = await start(up, engineArgs(values));
  try {
    const runs = new Map<SystemName, Run[]>(SYSTEMS.map((name) => [name, []]));
    const first = systems.get("plain");
    if (first === undefined) throw new Error("nothing was started");
    const prompts = await promptIds(first.fleet, sizes.groups * (sizes.rounds + 1));
    const workloads: Workload[] = [];
    for (let round = 0; round <= sizes.rounds; round += 1) {
      const workload = {
        prompts: prompts.slice(round * sizes.groups, (round + 1) * sizes.groups),
        seed: SEED + round * sizes.groups * sizes.siblings,
        lengths: null,
      };
      const { lengths, outputTokens } = await iteration(first, workload, sizes);
      console.error(`lengths of round ${round}/${sizes.rounds}: ${outputTokens} tokens`);
      workloads.push({ ...workload, lengths });
    }
    // Round 0 warms up and is not counted; the order turns, so that none is always first.
    for (const [round, workload] of workloads.entries()) {
      for (let turn = 0; turn < SYSTEMS.length; turn += 1) {
        const name = SYSTEMS[(turn + round) % SYSTEMS.length] ?? "plain";
        const system = systems.get(name);
        if (system === undefined) continue;
        const run = await iteration(system, workload, sizes);
        console.error(
          `round ${round}/${sizes.rounds} ${name}: ${run.wallS.toFixed(2)} s, tail ${run.tailS.toFixed(2)} s`,
        );
        if (round > 0) runs.get(name)?.push(run);
      }
    }
    const found = new Map(
      SYSTEMS.map((name) => [
        name,
        figures(runs.get(name) ?? [], systems.get(name)?.drafts === true),
      ]),
    );
    console.log(tableOf(found));
    const over = pluginOverSuffix(found);
    const said = ([mean, least, most]: readonly number[]) =>
      `${mean?.toFixed(2)} (${least?.toFixed(2)} - ${most?.toFixed(2)})`;
    console.log(
      `the plugin is so many times as fast as suffix: wall ${said(over.wall_s)}, tail ${said(over.tail_s)}`,
    );
    if (values.report !== undefined) {
      const report = {
        conditions: { ...conditions(), ...values },
        systems: Object.fromEntries(found),
        plugin_over_suffix: over,
      };
      writeFileSync(values.report, `${JSON.stringify(report, null, 2)}\n`);
    }
  } finally {
    await Promise.all(
      [...new Set([...systems.values()].map(({ fleet }) => fleet))].map((fleet) => fleet.stop()),
    );
  }
}

if (import.meta.main) await main();
