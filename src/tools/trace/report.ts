// The timelines in a report of `foretoken rollout`. Checks that the file is a report, and of this version.

import { readFileSync } from "node:fs";
import * as v from "valibot";
import { AppError, errorText, fileProblem, InvalidFieldError } from "../../core/base/errors.ts";
import { CHUNK_COLUMNS, type Timeline } from "../../core/rollout/timeline.ts";

const ThisVersion = v.custom<Timeline>(
  (timeline) => String(Object(timeline).chunk_columns) === CHUNK_COLUMNS.join(),
  `its chunks have ${CHUNK_COLUMNS.join(", ")} in this version`,
);
const Report = v.object({ runs: v.record(v.string(), v.object({ timeline: ThisVersion })) });

export interface TracedRun {
  readonly name: string;
  readonly timeline: Pick<Timeline, "responses" | "responses_left_out" | "workers">;
}

/** Reads the timelines of a report. @throws AppError usage, invalid_json, invalid_field. */
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
  try {
    return JSON.parse(readFileSync(path, "utf8"));
  } catch (cause) {
    if (cause instanceof SyntaxError) {
      throw new AppError("invalid_json", `${path}: ${errorText(cause)}`, { cause });
    }
    throw new AppError("usage", `cannot read ${path}: ${fileProblem(cause)}`, { cause });
  }
}
