// The trajectories of sessions over HTTP: one as JSON, many as NDJSON, a line each.

import type { Later } from "../../core/base/clock.ts";
import { AppError } from "../../core/base/errors.ts";
import { lineStream, NDJSON, type StreamPiece } from "../pulled-stream.ts";
import { type Exchange, invalid, jsonResponse, type Row, textIn, wholeNumber } from "../route.ts";
import type { Sidecar } from "../sidecar.ts";
import type { Session, Trajectories } from "./trajectories.ts";
import type { Trajectory } from "./trajectory.ts";

interface Parts {
  readonly sidecar: Sidecar;
  readonly trajectories: Trajectories;
  readonly later: Later;
}

const WHICH = {
  group: { type: "string" },
  iteration: { type: "integer", minimum: 1 },
  run: { type: "integer", minimum: 1 },
} as const;

export const SESSION_ROUTES: readonly Row<Parts>[] = [
  {
    method: "GET",
    path: "/v1/sessions",
    summary:
      "Sessions by name, of a `group` or with turns of an `iteration`; `format=ndjson`: their trajectories, a line each",
    query: { ...WHICH, format: { enum: ["json", "ndjson"] } },
    answers: ["application/json", NDJSON],
    handle: all,
  },
  {
    method: "GET",
    path: "/v1/sessions/:id",
    summary:
      "The trajectory of a session: token ids, loss mask, logprobs and weights of its turns as contiguous sequences",
    query: WHICH,
    handle: ({ trajectories }, exchange) =>
      jsonResponse(trajectoryOf(trajectories, oneOf(trajectories, exchange))),
  },
  {
    method: "DELETE",
    path: "/v1/sessions/:id",
    summary: "Forgets a session's trajectory",
    query: { group: WHICH.group },
    handle: ({ trajectories }, exchange) => {
      const session = oneOf(trajectories, exchange);
      trajectories.forget(session);
      return jsonResponse({ session: session.name, deleted: true });
    },
  },
  {
    method: "POST",
    path: "/finish_session",
    summary:
      "A session is over: its KV is freed, and a later turn with its name begins another (SkyRL's route)",
    schema: { type: "object" },
    handle: async ({ sidecar, trajectories }, exchange) => {
      const name = textIn(await exchange.json(), "session_id");
      const ended = Math.max(sidecar.sessions.end(name), trajectories.end(name));
      return jsonResponse({ ended });
    },
  },
];

function all({ trajectories, later }: Parts, exchange: Exchange): Response {
  const sessions = trajectories.sessions(chosenBy(exchange.url));
  const format = exchange.url.searchParams.get("format") ?? "json";
  if (format === "json") {
    return jsonResponse({ sessions: [...sessions].map((one) => summaryOf(trajectories, one)) });
  }
  if (format !== "ndjson") {
    throw invalid("format", `is ${JSON.stringify(format)}, not "json" or "ndjson"`);
  }
  const next = (): StreamPiece => {
    const { value: session } = sessions.next();
    if (session === undefined) return { text: "", end: "done" };
    return { text: `${JSON.stringify(trajectoryOf(trajectories, session))}\n`, hasMore: true };
  };
  return lineStream(exchange, { later, next }).response;
}

/** The sessions that the query selects. @throws InvalidFieldError: a value is not a number. */
function chosenBy({ searchParams }: URL): Parameters<Trajectories["sessions"]>[0] {
  const numberIn = (field: "iteration" | "run") => {
    const text = searchParams.get(field);
    return text === null ? null : wholeNumber(field, text);
  };
  const group = searchParams.get("group");
  const iteration = numberIn("iteration");
  const run = numberIn("run");
  return (session) =>
    (group === null || session.group === (group === "" ? null : group)) &&
    (run === null || session.run === run) &&
    (iteration === null || session.trajectory.turns.some((turn) => turn.iteration === iteration));
}

/** The last run of the session in the path. @throws AppError not_found; conflict: two groups have such a session. */
function oneOf(trajectories: Trajectories, { params, url }: Exchange): Session {
  const { id = "" } = params;
  const isChosen = chosenBy(url);
  const found = [...trajectories.sessions((one) => one.name === id && isChosen(one))];
  const groups = new Set(found.map(({ group }) => group));
  if (groups.size > 1) {
    const names = [...groups].map((group) => JSON.stringify(group ?? "")).join(", ");
    const problem = `several groups have a session ${id}: name one with ?group= (${names})`;
    throw new AppError("conflict", problem);
  }
  const last = found.toSorted((a, b) => a.run - b.run).at(-1);
  if (last !== undefined) return last;
  const reason = trajectories.whyDropped(id);
  const why = reason === null ? "no turn has named it" : `it is gone: ${reason}`;
  const problem = `there is no trajectory of a session ${JSON.stringify(id)}: ${why}`;
  throw new AppError("not_found", problem);
}

function summaryOf(trajectories: Trajectories, session: Session) {
  const { name, group, run, flaws, trajectory, lastMs } = session;
  return {
    session: name,
    group,
    run,
    state: trajectories.stateOf(session),
    is_complete: flaws.length === 0,
    incomplete_because: flaws,
    turn_count: trajectory.turns.length,
    segment_count: trajectory.segmentCount,
    last_event_s: lastMs / 1000,
  };
}

function trajectoryOf(trajectories: Trajectories, session: Session) {
  const { trajectory } = session;
  const numbers = Array.from({ length: trajectory.segmentCount }, (_, i) => i);
  return {
    ...summaryOf(trajectories, session),
    segments: numbers.map((number) => segmentOf(trajectory, number)),
    turns: trajectory.turns.map((turn, number) => ({
      turn: number,
      request: turn.requestId,
      segment: turn.place.segment,
      iteration: turn.iteration,
      prompt_tokens: turn.promptTokens,
      cached_tokens: turn.cachedTokens,
      output_tokens: turn.output.length,
      finish_reason: turn.finish,
      adapter: turn.adapter,
      tool_calls: turn.toolCalls,
      began_s: turn.beganS,
      ended_s: turn.endedS,
    })),
  };
}

function segmentOf(trajectory: Trajectory, number: number) {
  const { parent, tokenIds, lossMask, logprobs, spans } = trajectory.segment(number);
  return {
    segment: number,
    parent,
    token_ids: [...tokenIds],
    loss_mask: [...lossMask],
    // JSON writes NaN as null.
    logprobs: [...logprobs],
    spans: spans.map(({ turn, from, to, epoch, version }) => ({
      turn,
      from,
      to,
      weight_epoch: epoch,
      weight_version: version,
    })),
  };
}
