// What runs say, as figures: from the requests' times, the servers' counters and the engines' logs. Each figure is a row of
// one table; the report, its ratios and the printed tables come from it.

import { median } from "../../../src/cli/rounds.ts";
import { figureTable, type Line } from "../../harness.ts";
import { meanOf, type Ratio, ratioOf, said, sumOf } from "../../statistics.ts";
import type { Run } from "./drive.ts";
import type { EngineLog, Step } from "./engine-log.ts";
import type { SystemName } from "./systems.ts";

interface Figure {
  readonly of: (run: Run) => number;
  /** Over all rounds: times, shares and ratios are means, counts are sums. */
  readonly over: "mean" | "sum";
}

const mean = (of: Figure["of"]): Figure => ({ of, over: "mean" });
const total = (of: Figure["of"]): Figure => ({ of, over: "sum" });

const FIGURES = {
  wall_s: mean(({ wallS }) => wallS),
  tail_s: mean(({ tailS }) => tailS),
  output_tokens: total(({ texts }) => sumOf(texts.flat(), ({ length }) => length)),
  /** Output tokens of a request in a step: 1 without drafts. */
  tokens_per_step: mean(({ counters: { generationTokens: made, acceptedTokens } }) => {
    return made / Math.max(1, made - acceptedTokens);
  }),
  engine_steps: total(({ counters }) => counters.steps),
  /** Prompts of all requests that reached the engines: a chunk that goes on brings its text so far. */
  prompt_tokens: total(({ log }) => sumOf(begun(log), (one) => one.promptTokens + one.madeTokens)),
  /** The part of prompt_tokens that was found neither in a prefix cache nor in the pool. */
  prompt_tokens_computed: total(({ log }) => sumOf(begun(log), (one) => one.computedTokens)),
  /** Tokens that had been computed before: of chunks that went on, and after preemptions. */
  computed_again_tokens: total(({ log }) => computedAgain(log)),
  preemptions: total(({ counters }) => counters.preemptions),
  /** Chunks that went on at the other server; output tokens in them, and those whose KV was found there. */
  moves: total(({ log }) => movesOf(log).moves),
  moved_tokens: total(({ log }) => movesOf(log).tokens),
  moved_tokens_found: total(({ log }) => movesOf(log).found),
  /** Found in the KV pool, prompts included. */
  pool_hit_tokens: total(({ counters }) => counters.externalHitTokens),
  drafted_tokens: total(({ counters }) => counters.draftedTokens),
  accepted_tokens: total(({ counters }) => counters.acceptedTokens),
  /** CPU of the step's own thread in proposing. */
  propose_us: total(({ log }) => log.proposeUs),
  /** Requests running on both servers, over the whole run. */
  running_mean: mean((run) => meanOrZero(runningOf(run))),
  /** Share of the KV in use, and seconds, while a request was waiting for an engine. */
  kv_share_waiting: mean((run) => meanOrZero(waitingOf(run))),
  waiting_s: mean((run) => waitingOf(run).length * INTERVAL_S),
  servers_cpu_s: mean(({ serversCpuS }) => serversCpuS),
  sidecar_cpu_s: mean(({ sidecarCpuS }) => sidecarCpuS),
  others_cpu_share: mean(({ othersCpuShare }) => othersCpuShare),
  idle_sets_cpu_share: mean(({ idleCpuShare }) => idleCpuShare),
} satisfies Record<string, Figure>;

export type RoundFigures = Readonly<Record<keyof typeof FIGURES, number>>;
export type SystemFigures = RoundFigures & { readonly rounds: readonly RoundFigures[] };
export type Runs = ReadonlyMap<SystemName, readonly Run[]>;
export type Found = ReadonlyMap<SystemName, SystemFigures>;

export function figuresOf(runs: readonly Run[]): SystemFigures {
  const names = Object.keys(FIGURES) as (keyof RoundFigures)[];
  const figures = (value: (name: keyof RoundFigures) => number) =>
    Object.fromEntries(names.map((name) => [name, value(name)])) as RoundFigures;
  const rounds = runs.map((run) => figures((name) => FIGURES[name].of(run)));
  const all = figures((name) => {
    const sum = sumOf(rounds, (round) => round[name]);
    return FIGURES[name].over === "mean" ? sum / rounds.length : sum;
  });
  return { ...all, rounds };
}

export const figuresIn = (runs: Runs): Found =>
  new Map([...runs].map(([name, of]) => [name, figuresOf(of)]));

const meanOrZero = (values: readonly number[]) => (values.length === 0 ? 0 : meanOf(values));

const begun = ({ prefills }: EngineLog) => prefills.filter(({ resumed }) => resumed === 0);

/**
 * Tokens whose KV was there before and was not found. The last token of a text has no KV yet: that it is computed is no
 * loss. Rows of drafts are none either: vLLM pads a request that lacks one token only with as many as it may draft.
 */
export function computedAgain({ prefills }: Pick<EngineLog, "prefills">): number {
  return sumOf(prefills, ({ promptTokens, madeTokens, resumed, foundTokens }) => {
    if (madeTokens > 0) return promptTokens + madeTokens - 1 - foundTokens;
    return resumed === 1 ? promptTokens - foundTokens : 0;
  });
}

export function movesOf({ prefills }: Pick<EngineLog, "prefills">) {
  const serverOf = new Map<string, number>();
  const sum = { moves: 0, tokens: 0, found: 0 };
  for (const { server, group, sample, promptTokens, madeTokens, foundTokens } of prefills) {
    const response = `${group}/${sample}`;
    const before = serverOf.get(response) ?? server;
    serverOf.set(response, server);
    if (before === server) continue;
    sum.moves += 1;
    sum.tokens += madeTokens;
    sum.found += Math.max(0, Math.min(madeTokens, foundTokens - promptTokens));
  }
  return sum;
}

const INTERVAL_S = 0.25;

/** Running requests and KV in use of each server, at even distances. */
export function timelineOf({ log, startS, wallS }: Pick<Run, "log" | "startS" | "wallS">) {
  return log.steps.map((steps) => {
    let at = -1;
    return Array.from({ length: Math.ceil(wallS / INTERVAL_S) }, (_, i) => {
      const nowS = startS + (i + 0.5) * INTERVAL_S;
      while (at + 1 < steps.length && (steps[at + 1]?.beginS ?? 0) <= nowS) at += 1;
      const step = steps[at];
      const isIdle = step === undefined || (step.endS < nowS && step.unfinished === 0);
      return { running: isIdle ? 0 : step.requests, kvShare: isIdle ? 0 : step.kvShare };
    });
  });
}

function runningOf(run: Run): number[] {
  const [first = [], ...others] = timelineOf(run);
  return first.map(({ running }, i) => running + sumOf(others, (of) => of[i]?.running ?? 0));
}

/**
 * KV in use of each interval in which at least one response waits, wherever it does: fewer run than have not finished. A
 * response between two chunks is away for some milliseconds only.
 */
function waitingOf(run: Run): number[] {
  const servers = timelineOf(run);
  return runningOf(run).flatMap((running, i) => {
    const nowS = (i + 0.5) * INTERVAL_S;
    const unfinished = run.finishedS.filter((s) => s > nowS).length;
    return unfinished > running ? meanOf(servers.map((of) => of[i]?.kvShare ?? 0)) : [];
  });
}

type Span = "wall_s" | "tail_s";

/** How many times as fast `of` is as `base`, by round; null: one of them was not run. */
function speedup(found: Found, base: SystemName, of: SystemName, key: Span): Ratio | null {
  const [before, now] = [base, of].map((name) => found.get(name)?.rounds.map((one) => one[key]));
  return before === undefined || now === undefined ? null : ratioOf(before, now);
}

const percent = (part: number, whole = 1): string =>
  whole === 0 ? "-" : `${Math.round((100 * part) / whole)} %`;

const fixed =
  (key: keyof RoundFigures, digits = 0) =>
  (of: RoundFigures): string =>
    of[key].toFixed(digits);

/** One line for each figure, one column for each system. */
export function tableOf(found: Found): string {
  const overPlain = (key: Span) => (_: RoundFigures, name: string) =>
    said(speedup(found, "plain", name as SystemName, key));
  return figureTable<SystemFigures>(found, [
    ["wall s", fixed("wall_s", 2)],
    ["plain's wall / its", overPlain("wall_s")],
    ["tail s", fixed("tail_s", 2)],
    ["plain's tail / its", overPlain("tail_s")],
    ["output tokens", fixed("output_tokens")],
    ["tokens/step", fixed("tokens_per_step", 2)],
    ["engine steps", fixed("engine_steps")],
    ["drafted", fixed("drafted_tokens")],
    ["accepted", fixed("accepted_tokens")],
    ["propose us/token", (of) => (of.propose_us / of.output_tokens).toFixed(1)],
    ["preempted", fixed("preemptions")],
    ["prompt tokens sent", fixed("prompt_tokens")],
    ["  of these computed", fixed("prompt_tokens_computed")],
    ["computed again", fixed("computed_again_tokens")],
    ["moves", fixed("moves")],
    ["moved KV found there", (of) => percent(of.moved_tokens_found, of.moved_tokens)],
    ["running, mean", fixed("running_mean", 1)],
    ["KV while requests wait", (of) => percent(of.kv_share_waiting)],
    ["CPU s, servers", fixed("servers_cpu_s", 1)],
    ["CPU s, sidecar", fixed("sidecar_cpu_s", 1)],
    ["CPU of idle sets", (of) => percent(of.idle_sets_cpu_share)],
    ["CPU of others", (of) => percent(of.others_cpu_share)],
  ]);
}

/** Share of other processes' CPU time from which times are not comparable. */
const BUSY_SHARE = 0.05;

/** Sentences below the table. */
export function notesOf(found: Found): string[] {
  const notes: string[] = [];
  for (const name of ["foretoken_plugin", "foretoken_plugin_pool"] as const) {
    const wall = speedup(found, "suffix", name, "wall_s");
    const tail = speedup(found, "suffix", name, "tail_s");
    if (wall === null) continue;
    notes.push(`suffix's time / ${name}'s: wall ${said(wall)}, tail ${said(tail)}`);
  }
  notes.push("Ratios are geometric means over rounds, with 95 % t intervals.");
  const rounds = [...found.values()].flatMap((of) => of.rounds);
  const shares = rounds.map(({ others_cpu_share }) => others_cpu_share);
  if (Math.max(...shares) >= BUSY_SHARE) {
    const range = `${percent(Math.min(...shares))} to ${percent(Math.max(...shares))}`;
    const used = `other processes used ${range} of its CPU time`;
    notes.push(`The machine was too busy to compare times: ${used}.`);
  }
  return notes;
}

export function reportOf(runs: Runs, conditions: object) {
  const found = figuresIn(runs);
  const ratios = [...found.keys()].map((name) => [
    name,
    {
      wall_over_plain: speedup(found, "plain", name, "wall_s"),
      tail_over_plain: speedup(found, "plain", name, "tail_s"),
      wall_over_suffix: speedup(found, "suffix", name, "wall_s"),
      tail_over_suffix: speedup(found, "suffix", name, "tail_s"),
    },
  ]);
  const account = [...runs].map(([name, of]) => [name, accountOf(of)]);
  return {
    conditions,
    systems: Object.fromEntries(found),
    ratios: Object.fromEntries(ratios),
    notes: notesOf(found),
    account: Object.fromEntries(account),
  };
}

/** Least rows of each class of steps. */
const ROW_CLASSES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64] as const;

/**
 * Where the time of a system's runs goes, from the engines' step logs. For servers in parallel:
 *
 *   wall = tokens x step time / (requests in a step x tokens of a request in a step x busy share x servers)
 *
 * so the factors by which a system differs from plain multiply to its speedup.
 */
export function accountOf(runs: readonly Run[]) {
  const steps = runs.flatMap(({ log }) => log.steps.flat());
  const all = (key: keyof Step): number => sumOf(steps, (step) => step[key]);
  const count = Math.max(1, steps.length);
  const busyS = all("endS") - all("beginS");
  const serverS = sumOf(runs, ({ wallS, log }) => wallS * log.steps.length);
  const betweenS = sumOf(runs, ({ log }) => sumOf(log.steps, betweenStepsS));
  const gaps = runs.flatMap(({ log }) => betweenChunksS(log));
  return {
    wall_s: meanOf(runs.map(({ wallS }) => wallS)),
    tokens: all("tokensMade"),
    steps: steps.length,
    step_ms: (1000 * busyS) / count,
    requests_per_step: all("requests") / count,
    /** Tokens of one request in a step. */
    tokens_per_step: all("tokensMade") / Math.max(1, all("requests")),
    rows_per_step: all("rows") / count,
    draft_rows: all("draftRows"),
    prefill_rows: all("prefillRows"),
    computed_again_tokens: sumOf(runs, ({ log }) => computedAgain(log)),
    /** Shares of the servers' time: in steps; between steps with requests there; without any request. */
    busy_share: busyS / serverS,
    between_share: betweenS / serverS,
    idle_share: 1 - (busyS + betweenS) / serverS,
    chunks: sumOf(runs, ({ log }) => log.ends.length),
    /** Time from the end of a chunk to the first step of the response's next one; median, and sum over all responses. */
    between_chunks_ms: gaps.length === 0 ? 0 : 1000 * median(gaps),
    between_chunks_s: sumOf(gaps, (s) => s),
    /** Steps without prefill, by their number of rows; ms: the median. */
    steps_by_rows: ROW_CLASSES.flatMap((least, i) => {
      const below = ROW_CLASSES[i + 1] ?? Number.POSITIVE_INFINITY;
      const own = steps.filter(
        ({ rows, prefillRows }) => prefillRows === 0 && rows >= least && rows < below,
      );
      const ms = 1000 * median(own.map(({ beginS, endS }) => endS - beginS));
      return own.length === 0 ? [] : { rows_min: least, steps: own.length, ms };
    }),
  };
}

type Account = ReturnType<typeof accountOf>;

function betweenStepsS(steps: readonly Step[]): number {
  return steps.reduce((sum, { beginS }, i) => {
    const before = steps[i - 1];
    return before === undefined || before.unfinished === 0 ? sum : sum + beginS - before.endS;
  }, 0);
}

/** Seconds from each chunk's end to the next begin of the same response, on whichever server. */
export function betweenChunksS({ ends, prefills }: Pick<EngineLog, "ends" | "prefills">): number[] {
  const open = new Map<string, number>();
  const events = [
    ...ends.map((end) => ({ ...end, isEnd: true })),
    ...prefills.map((prefill) => ({ ...prefill, isEnd: false })),
  ].toSorted((a, b) => a.atS - b.atS);
  return events.flatMap(({ atS, group, sample, isEnd }) => {
    const key = `${group}/${sample}`;
    const endS = open.get(key);
    if (isEnd) open.set(key, atS);
    else open.delete(key);
    return isEnd || endS === undefined ? [] : [atS - endS];
  });
}

export function accountTables(runs: Runs): string {
  const accounts = new Map([...runs].map(([name, of]) => [name as string, accountOf(of)]));
  type Key = Exclude<keyof Account, "steps_by_rows">;
  const line = (title: string, key: Key, digits = 0): Line<Account> => [
    title,
    (of) => of[key].toFixed(digits),
  ];
  const share = (title: string, key: Key): Line<Account> => [
    title,
    (of) => `${(100 * of[key]).toFixed(1)} %`,
  ];
  const all = figureTable(accounts, [
    line("wall s", "wall_s", 2),
    line("steps", "steps"),
    line("requests in a step", "requests_per_step", 2),
    line("rows in a step", "rows_per_step", 2),
    line("tokens of a request in a step", "tokens_per_step", 2),
    line("step ms, mean", "step_ms", 1),
    line("rows of drafts", "draft_rows"),
    line("rows of prefill", "prefill_rows"),
    line("tokens computed again", "computed_again_tokens"),
    share("in steps", "busy_share"),
    share("between steps", "between_share"),
    share("idle", "idle_share"),
    line("chunks", "chunks"),
    line("between chunks, median ms", "between_chunks_ms", 1),
    line("between chunks, s of all", "between_chunks_s", 1),
  ]);
  const byRows = ROW_CLASSES.map((least): Line<Account> => {
    const classOf = (of: Account) => of.steps_by_rows.find(({ rows_min }) => rows_min === least);
    return [
      `${least}+`,
      (of) => {
        const { ms, steps } = classOf(of) ?? { ms: 0, steps: 0 };
        return steps === 0 ? "-" : `${ms.toFixed(1)} (${steps})`;
      },
    ];
  });
  const rows = figureTable(accounts, byRows, "median ms (steps), by rows, without prefill");
  const plain = accounts.get("plain");
  if (plain === undefined) return [all, rows].join("\n");
  const factor = (title: string, ratio: (of: Account) => number): Line<Account> => [
    title,
    (of) => ratio(of).toFixed(2),
  ];
  const factors = [
    factor("tokens of a request in a step", (of) => of.tokens_per_step / plain.tokens_per_step),
    factor("x requests in a step", (of) => of.requests_per_step / plain.requests_per_step),
    factor("x step time", (of) => plain.step_ms / of.step_ms),
    factor("x share of time in steps", (of) => of.busy_share / plain.busy_share),
    factor("= speed", (of) => plain.wall_s / of.wall_s),
  ];
  return [all, rows, figureTable(accounts, factors, "speed over plain, by factors")].join("\n");
}
