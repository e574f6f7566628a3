// The timelines in a report of `foretoken rollout`, or of a sidecar. Every field that the trace needs is checked.

import { readFileSync } from "node:fs";
import * as v from "valibot";
import { AppError, errorText, fileProblem, InvalidFieldError } from "../../core/base/errors.ts";
import { CHUNK_COLUMNS } from "../../core/rollout/timeline.ts";

const ms = v.pipe(v.number(), v.finite());
const count = v.pipe(v.number(), v.integer(), v.minValue(0));
const samples = v.array(v.pipe(v.number(), v.minValue(0)));

const Chunk = v.tuple([
  ...([count, ms, v.nullable(ms), v.nullable(ms), count, count] as const),
  ...([v.nullable(count), v.nullable(count), count, v.nullable(v.string())] as const),
]);

const ResponseTimeline = v.object({
  group: v.string(),
  index: count,
  request: count,
  joined_ms: ms,
  end_ms: v.nullable(ms),
  tokens: count,
  chunks: v.array(Chunk),
});

const WorkerTimeline = v.pipe(
  v.object({
    worker: count,
    name: v.string(),
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

const Timeline = v.object({
  chunk_columns: v.custom<string[]>(
    (columns) => String(columns) === CHUNK_COLUMNS.join(),
    `they are ${CHUNK_COLUMNS.join(", ")} in this version`,
  ),
  responses: v.array(ResponseTimeline),
  responses_left_out: count,
  workers: v.array(WorkerTimeline),
});

const Report = v.object({ runs: v.record(v.string(), v.object({ timeline: Timeline })) });

export type TracedTimeline = v.InferOutput<typeof Timeline>;
export type TracedResponse = v.InferOutput<typeof ResponseTimeline>;
export type TracedChunk = v.InferOutput<typeof Chunk>;

export interface TracedRun {
  readonly name: string;
  readonly timeline: TracedTimeline;
}

/** @throws AppError usage, invalid_json, invalid_field. */
export function readTracedRuns(path: string): TracedRun[] {
  const result = v.safeParse(Report, parsed(path), { abortEarly: true });
  if (!result.success) {
    const [issue] = result.issues;
    const isMissing = issue.received === "undefined";
    const problem = isMissing
      ? "is missing: a report is what `foretoken rollout --report` writes (older versions did not)"
      : `is wrong: ${issue.message}`;
    throw new InvalidFieldError({ where: path, field: v.getDotPath(issue) ?? "report", problem });
  }
  const runs = Object.entries(result.output.runs).map(([name, run]) => ({ name, ...run }));
  if (runs.length > 0) return runs;
  throw new InvalidFieldError({ where: path, field: "runs", problem: "is empty" });
}

function parsed(path: string): unknown {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (cause) {
    throw new AppError("usage", `cannot read ${path}: ${fileProblem(cause)}`, { cause });
  }
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new AppError("invalid_json", `${path}: ${errorText(cause)}`, { cause });
  }
}
