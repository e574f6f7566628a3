// The features of the server: one row each, in the order in which they observe and close. A row says which routes and
// sockets it has, what it observes, what it keeps, and how it ends; serve.ts knows no more of it.
//
// To add one: a class in `server` (as server/deadlines.ts) and a row in `featuresOf`, at its end if the order is nothing to it: a
// `Feature` (serve-parts.ts), made of `Parts`. Its `observer` gets `joined(request, spec)`, `finished(request)` (complete or given
// up), `advanced(epoch)` (an update has succeeded; what finished before it is of the old weights), and the rest of `RolloutListener`
// (core/rollout/listener.ts). A finished request has `spec.requestId` and `response`: `length` in tokens, `joinedMs` and `finishedMs`
// by the rollout's clock, and `finish`, of which `isCut` (core/request/request.ts) says that it was given up. `iterationEnded` comes
// at other times, too: when nothing has run for a while. Its routes are a table beside the class: `const TABLE: readonly Row<{
// readonly mine: Mine }>[] = [{ method, path, summary, handle: ({ mine }) => jsonResponse(...) }]` (server/route.ts; without `right`
// it asks for the API token, as the live view does), `routes: bound(TABLE, { mine })` in the row, and `...TABLE` in `routeTable`.
// `kept` is for memory that is bounded in bytes alone. An event for the log is a member of ServeEvents (serve-options.ts) and its
// line in cli/serve-events.ts: `log(level, event, fields)`, where the event is a fixed word. Tests: a `Bed` with its observer as in
// server/deadlines.test.ts (`bed.sidecar.advance(epoch)` changes the weights); `await new Router(bound(TABLE, { mine }))
// .handle(exchangeOf("GET", path, null))` (test/suite/exchange.ts) asks a route. Docs: bun scripts/gen-reference.ts, no prose.

import { ADAPTER_CONTROL, ADAPTER_DATA, ADAPTER_SESSION_HEADERS } from "./adapters/list.ts";
import { randomWord, wallClock } from "./app.ts";
import { errorText } from "./core/base/errors.ts";
import { weightEpoch } from "./core/base/ids.ts";
import { SAMPLES_MAX } from "./core/draft/service/limits.ts";
import { DraftServer } from "./core/draft/service/server.ts";
import { SegmentedLog } from "./host/segmented-log.ts";
import { METRICS_ROUTES, metered } from "./metered.ts";
import type { Feature, Parts } from "./serve-parts.ts";
import { workersOf } from "./server/control/calls.ts";
import { CONTROL_ROUTES, controlRoutes } from "./server/control/routes.ts";
import { confined } from "./server/control/weights-roots.ts";
import { Deadlines } from "./server/deadlines.ts";
import { DraftSocketService } from "./server/drafts/draft-socket.ts";
import { EngineTelemetry, PLUGIN_ROUTES } from "./server/drafts/engine-telemetry.ts";
import { followedResponses } from "./server/drafts/followed-responses.ts";
import { Iterations } from "./server/iterations.ts";
import { LIVE_ROUTES } from "./server/live/routes.ts";
import { LiveView } from "./server/live/view.ts";
import { DATA_ROUTES, dataRoutes } from "./server/openai/data-plane.ts";
import { DataPlane } from "./server/openai/plane.ts";
import { RequestJournals } from "./server/openai/request-journals.ts";
import { OPENAPI_ROUTE } from "./server/openapi.ts";
import { PAGE_ROUTE } from "./server/page/html.ts";
import { ROLLOUT_ROUTES, rolloutSide } from "./server/rollouts/routes.ts";
import { bound, type RouteInfo } from "./server/route.ts";
import { StreamService } from "./server/stream/service.ts";
import { encodeEvent, eventsIn } from "./server/trajectories/event-frame.ts";
import { SESSION_ROUTES } from "./server/trajectories/routes.ts";
import { Trajectories } from "./server/trajectories/trajectories.ts";
import { WORKER_ROUTES } from "./server/worker-registry.ts";

/** Every route of the server, as its row describes it. */
export function routeTable(): readonly RouteInfo[] {
  return [
    ...CONTROL_ROUTES,
    ...ADAPTER_CONTROL,
    ...WORKER_ROUTES,
    ...DATA_ROUTES,
    ...ADAPTER_DATA,
    ...ROLLOUT_ROUTES,
    ...SESSION_ROUTES,
    PAGE_ROUTE,
    ...LIVE_ROUTES,
    ...PLUGIN_ROUTES,
    ...METRICS_ROUTES,
    OPENAPI_ROUTE,
  ];
}

/** Interval between polls of the versions that engines report; fenced engines send no events. */
const VERSION_POLL_MS = 250;
/** Limit of the page's responses of complete groups. */
const COMPLETED_BYTES_MAX = 64 * 2 ** 20;
/** Limit of the trajectories of all sessions: 16,000 of 30 turns, with 250 new and 250 drawn tokens each, take 1.8 GB. */
const TRAJECTORY_BYTES_MAX = 2 * 2 ** 30;
const TRAJECTORY_LOG_BYTES_MAX = 2 ** 30;
/** Time after its last turn at which a session counts as ended: as long as a tool may take. */
const SESSION_MS_MAX = 600_000;
/** Interval of the sweep for unused draft groups. */
const DRAFT_SWEEP_MS = 1000;

export function featuresOf(parts: Parts): Feature[] {
  const { sidecar, history, learned, timers, options } = parts;
  const { text } = options.model;
  const { repeatedly: every } = timers;
  const stream = new StreamService({
    ...{ sidecar, random: randomWord, every },
    failed: options.events.failed,
  });
  const drafts = draftService(parts);
  const deadlines = new Deadlines({
    ...{ sidecar, every, clock: wallClock },
    ended: (notice) => options.events.deadline(notice),
  });
  const live = liveView(parts);
  const features: Feature[] = [
    { kept: { groups: () => sidecar.kept, sessions: () => sidecar.sessions.kept } },
    history === null
      ? {}
      : {
          observer: {
            finished: (request) => history.finished(request),
            advanced: () => history.advance(),
          },
          kept: { history: () => history.kept },
        },
    { close: every(() => learned.poll(), VERSION_POLL_MS) },
    { sockets: { "/v1/stream": stream }, drained: () => stream.end() },
    drafts.feature,
    operatorsLog(parts),
    { observer: deadlines.observer, close: deadlines.stop },
    // Ends the last iteration before the view closes that keeps it.
    iterations(parts, () => features),
    {
      routes: [PAGE_ROUTE, ...bound(LIVE_ROUTES, { live, sidecar, text })],
      iterationEnded: (summary) => live.iterationEnded(summary),
      kept: { completed: () => live.completed.kept },
      close: () => live.close(),
    },
    metered(parts, { stream, telemetry: drafts.telemetry, live, features: () => features }),
    ...requests(parts),
  ];
  return features;
}

function liveView(parts: Parts): LiveView {
  const { http, encoder, sidecar, pool, weights, learned, timers, options } = parts;
  const { events, iterationsFile = null } = options;
  return new LiveView({
    ...{ sidecar, pool, weights, clock: wallClock, every: timers.repeatedly, iterationsFile },
    workers: () => workersOf({ sidecar, pool, learned }),
    nowS: () => Date.now() / 1000,
    threadWaits: () => ["waits" in encoder ? encoder.waits : [], http.bodyWait() ?? []].flat(),
    completedBytesMax: COMPLETED_BYTES_MAX,
    changed: (state) => events.stateChanged(state),
    failed: events.failed,
  });
}

/** The draft service behind /v1/draft: all groups of the sidecar, under its weight epochs, for engines with the plugin. */
function draftService({ options, sidecar, history, timers }: Parts) {
  const server = new DraftServer({
    clock: wallClock,
    instanceId: randomWord(),
    // Responses to a prompt that comes again and again are all of one group.
    limits: { samplesMax: SAMPLES_MAX },
    leads: true,
    source: followedResponses(sidecar.rollout, history),
    release: options.version,
  });
  const telemetry = new EngineTelemetry({
    clock: wallClock,
    drafts: options.draft !== "off",
    notLossless: options.events.notLossless,
  });
  const service = new DraftSocketService({ server, reports: telemetry, later: timers.afterwards });
  const stopSweeping = timers.repeatedly(() => server.sweep(), DRAFT_SWEEP_MS);
  const end = () => {
    stopSweeping();
    service.end();
  };
  const feature: Feature = {
    routes: bound(PLUGIN_ROUTES, { server, telemetry, service }),
    sockets: { "/v1/draft": service },
    observer: { advanced: (epoch) => server.advance(epoch) },
    drained: end,
    close: end,
  };
  return { feature, telemetry };
}

/** Lines of the operator's log. */
function operatorsLog({ pool, weights, options }: Parts): Feature {
  const { events } = options;
  return {
    observer: {
      advanced: (epoch) => events.weightsChanged(epoch, weights.version(epoch)),
      quarantined: ({ response }) => events.quarantined(response.refusal?.message ?? ""),
      draftsOff: (worker, reason) => events.notLossless(worker.name, reason),
      finished: (request) => {
        const { refusal } = request.response;
        if (refusal === null) return;
        const worker = pool.members.find(({ workerId }) => workerId === request.workerId);
        events.refused({
          request: request.spec.requestId,
          worker: worker?.source.name ?? null,
          status: refusal.status,
          reason: refusal.message,
        });
      },
      threw: events.failed,
      broken: (error) => events.broken(error),
    },
    workerChanged: (member) => events.workerChanged(member),
    iterationEnded: (summary) => events.iterationEnded(summary),
    answered: (entry) => events.answered(entry),
  };
}

function iterations({ sidecar, timers }: Parts, features: () => readonly Feature[]): Feature {
  const all = new Iterations({
    sidecar,
    later: timers.afterwards,
    ended: (summary) => {
      for (const { iterationEnded } of features()) iterationEnded?.(summary);
    },
  });
  return { drained: () => all.end(), close: () => all.end() };
}

/** Requests, rollouts and control calls of clients, and what is kept of them over the end of the process. */
function requests(parts: Parts): Feature[] {
  const { options, sidecar, encoder, engines, chats, pool, weights, learned, journals, saved } =
    parts;
  const { text, names, eosTokenIds, openTextThread } = options.model;
  const { afterwards: later } = parts.timers;
  const { events, retryGraceMs: graceMs, version } = options;
  const { held } = parts;
  const after = (ms: number, run: () => void) => later(run, ms);
  const versionOf = weights.version.bind(weights);
  const files = journals;
  const requestJournals = files && new RequestJournals({ files, sidecar, held, graceMs, after });
  const { trajectories, feature } = recorded(parts);
  const plane = new DataPlane({
    ...{ sidecar, text, encoder, engines, chats, eosTokenIds, after },
    trajectories,
    journals: requestJournals,
    modelNames: names,
    adapters: () => weights.adapters,
    hasText: openTextThread !== null,
    version: versionOf,
    expected: (hint) => learned.requested(hint),
    sessionHeaders: ADAPTER_SESSION_HEADERS,
    limits: { graceMs },
    failed: events.failed,
  });
  const rollouts = rolloutSide({
    ...{ sidecar, text, encoder, chats, eosTokenIds, clock: wallClock, files, after },
    adapterOf: (model) => plane.checkModel(model),
    versionOf,
    held: () => pool.held,
  });
  requestJournals?.takeOver(saved.requests);
  rollouts.known.takeOver(saved.rollouts);
  const control = controlRoutes(
    {
      ...{ sidecar, pool, weights, learned, version, later },
      modelName: names[0],
      abortRequests: (ids) => plane.abort(ids),
      timeoutMs: options.weightsTimeoutMs,
    },
    ADAPTER_CONTROL,
  );
  return [
    {
      routes: [
        ...confined(control, options.weightsRoots ?? null),
        ...parts.registry.routes(),
        ...dataRoutes(plane, ADAPTER_DATA),
        ...rollouts.routes,
      ],
      kept: {
        requests: () => plane.kept,
        rollouts: () => rollouts.known.kept,
      },
      workerChanged: () => {
        chats.forget();
        if (journals !== null) parts.keepWeights();
      },
      ...(journals && {
        observer: { advanced: parts.keepWeights },
      }),
      // A client that is cut off later gives up nothing.
      stopped: async () => {
        await Promise.all([rollouts.known.close(), requestJournals?.close()]);
      },
    },
    feature,
    resuming(parts, rollouts.known),
  ];
}

/** The trajectories of sessions; with a journal, over the end of the process. */
function recorded({ sidecar, weights, timers, options }: Parts) {
  const log = trajectoryLog(options);
  const trajectories = new Trajectories({
    bytesMax: TRAJECTORY_BYTES_MAX,
    msMax: SESSION_MS_MAX,
    nowMs: () => Date.now(),
    iteration: () => sidecar.rollout.meter.iteration,
    version: (epoch) => weights.version(weightEpoch(epoch)),
    ...(log && { keep: (event) => log.append(encodeEvent(event)) }),
  });
  if (log !== null) trajectories.restore(log.read().flatMap(eventsIn));
  const after = (ms: number, run: () => void) => timers.afterwards(run, ms);
  const feature: Feature = {
    routes: bound(SESSION_ROUTES, { sidecar, trajectories, after }),
    kept: { trajectories: () => trajectories.kept },
    stopped: async () => {
      log?.append(encodeEvent({ kind: "stopped" }));
      await log?.close();
    },
  };
  return { trajectories, feature };
}

function trajectoryLog({ journal = null, events }: Parts["options"]): SegmentedLog | null {
  if (journal === null) return null;
  const failed = (cause: unknown) => {
    const problem = `trajectories are kept in memory alone: ${errorText(cause)}`;
    events.failed(new Error(problem, { cause }));
  };
  return new SegmentedLog({
    folder: journal,
    name: "trajectories",
    bytesMax: TRAJECTORY_LOG_BYTES_MAX,
    failed,
  });
}

/** Rollouts of an earlier process go on as soon as the engines serve, before anybody can see that they do. */
function resuming(
  { pool, sidecar, options }: Parts,
  rollouts: ReturnType<typeof rolloutSide>["known"],
): Feature {
  let isOver = false;
  return {
    workerChanged: () => {
      const count = rollouts.waiting;
      if (isOver || count === 0) return;
      if (!pool.hasStarted || sidecar.rollout.workers.length === 0) return;
      isOver = true;
      const weights = sidecar.rollout.workers.flatMap((worker) => worker.weights ?? []);
      rollouts.resume(weights, options.events.failed);
      options.events.resumed(count);
    },
    close: () => {
      isOver = true;
    },
  };
}
