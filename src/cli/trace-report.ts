// Reads the timelines in a report of `foretoken rollout`, or of a sidecar, and checks every field that the trace needs.

import { readFileSync } from "node:fs";
import * as v from "valibot";
import { AppError, errorText, fileProblem, InvalidFieldError } from "../core/base/errors.ts";
import { CHUNK_COLUMNS } from "../core/rollout/timeline.ts";

const ms = v.pipe(v.number(), v.finite());
const count = v.pipe(v.number(), v.integer(), v.minValue(0));
const samples = v.array(v.pipe(v.number(), v.minValue(0)));
const maybe = <T extends v.GenericSchema>(schema: T) => v.nullable(schema);

const ChunkRowFields = v.tuple([
  count,
  ms,
  maybe(ms),
  maybe(ms),
  count,
  count,
  maybe(count),
  maybe(count),
  count,
  maybe(v.string()),
]);

const ResponseFields = v.object({
  group: v.string(),
  index: count,
  request: count,
  joined_ms: ms,
  end_ms: maybe(ms),
  finish_reason: maybe(v.string()),
  tokens: count,
  chunks: v.array(ChunkRowFields),
});

const WorkerFields = v.pipe(
  v.object({
    worker: count,
    name: v.string(),
    slots: count,
    kv_tokens: count,
    at_ms: v.array(ms),
    running: samples,
    waiting: samples,
    kv_tokens_used: samples,
  }),
  v.check(
    ({ at_ms, running, waiting, kv_tokens_used }) =>
      [running, waiting, kv_tokens_used].every(({ length }) => length === at_ms.length),
    "its columns differ in length",
  ),
);

const TimelineFields = v.object({
  chunk_columns: v.pipe(
    v.array(v.string()),
    v.check(
      (columns) => columns.join() === CHUNK_COLUMNS.join(),
      `they are ${CHUNK_COLUMNS.join(", ")} in this version`,
    ),
  ),
  responses: v.array(ResponseFields),
  responses_left_out: count,
  workers: v.array(WorkerFields),
});

const WHAT_A_REPORT_IS = "a report is what `foretoken rollout --report` writes";
/** What a report without a timeline is. */
const MISSING = "is missing: the report is of an older version, or of no rollout";

const RunFields = v.object({
  timeline: v.optional(v.unknown()),
});

const ReportFields = v.object({ runs: v.record(v.string(), v.unknown()) });

export type TracedTimeline = v.InferOutput<typeof TimelineFields>;
export type TracedResponse = TracedTimeline["responses"][number];
export type TracedChunk = TracedResponse["chunks"][number];

export interface TracedRun {
  readonly name: string;
  readonly timeline: TracedTimeline;
}

/** @throws AppError usage, invalid_json, invalid_field. */
export function readTracedRuns(path: string): TracedRun[] {
  const report = check(ReportFields, parsed(path), path);
  const names = Object.keys(report.runs);
  if (names.length === 0) {
    throw new InvalidFieldError({ where: path, field: "runs", problem: "is empty" });
  }
  return names.map((name) => {
    const field = `runs.${name}.timeline`;
    const { timeline } = check(RunFields, report.runs[name], path, `runs.${name}`);
    if (timeline === undefined) {
      throw new InvalidFieldError({ where: path, field, problem: MISSING });
    }
    return { name, timeline: check(TimelineFields, timeline, path, field) };
  });
}

function parsed(path: string): unknown {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (cause) {
    throw new AppError("usage", `cannot read the report: ${path}: ${fileProblem(cause)}`, {
      cause,
    });
  }
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new AppError("invalid_json", `${path}: ${errorText(cause)}`, { cause });
  }
}

function check<T extends v.GenericSchema>(
  schema: T,
  value: unknown,
  where: string,
  within = "",
): v.InferOutput<T> {
  const result = v.safeParse(schema, value, { abortEarly: true });
  if (result.success) return result.output;
  const [issue] = result.issues;
  const inner = v.getDotPath(issue);
  const field = [within, inner].filter((part) => part).join(".") || "report";
  const isMissing = issue.received === "undefined";
  const problem = isMissing ? `is missing: ${WHAT_A_REPORT_IS}` : `is wrong: ${issue.message}`;
  throw new InvalidFieldError({ where, field, problem });
}
