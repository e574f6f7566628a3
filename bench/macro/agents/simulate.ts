// The iteration of drive.ts on modelled servers, in virtual time: Foretoken's own rollout and the same clients.

import type { RequestId, WorkerId } from "../../../src/core/base/ids.ts";
import { weightEpoch, workerId } from "../../../src/core/base/ids.ts";
import type { WorkerCommand, WorkerEvent } from "../../../src/core/rollout/worker.ts";
import { Timeline } from "../../../test/faults/simulated/timeline.ts";
import { ManualClock } from "../../../test/suite/manual-clock.ts";
import { NO_WORKER_STATS } from "../../../test/suite/no-figures.ts";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { newSidecar } from "../../../test/suite/sidecar-bed.ts";
import { StubWorker } from "../../../test/suite/stub-worker.ts";
import { sumOf } from "../../statistics.ts";
import { type AgentsRun, figuresOf } from "./drive.ts";
import { type ModelledRequest, ModelledServer, type ServerSizes } from "./modelled.ts";
import {
  CONTEXT_TOKENS,
  OUTPUT_TOKENS_MAX,
  type Task,
  type Turn,
  transcriptOf,
} from "./workload.ts";

export const MODELLED = [
  "round_robin",
  "sticky",
  "least_loaded",
  "foretoken_http",
  "foretoken_pool",
] as const;
export type ModelledSystem = (typeof MODELLED)[number];

/** Rest of the planned text that begins so; `sibling` says whose it is where several do. */
type NextOf = (tokens: readonly number[], sibling: number) => ModelledRequest["next"];

function nextIn(tasks: readonly Task[]): NextOf {
  const begins = (text: readonly number[], by: readonly number[]) =>
    by.every((token, i) => text[i] === token);
  const all = tasks.map(({ prompt, siblings }) => ({
    prompt,
    texts: siblings.map((turns) => [...prompt, ...transcriptOf(turns)]),
  }));
  const eos = tasks[0]?.siblings[0]?.[0]?.output.at(-1);
  return (tokens, sibling) => {
    const { texts } = all.find(({ prompt }) => begins(tokens, prompt)) ?? { texts: [] };
    const own = texts[sibling % texts.length] ?? [];
    const text = begins(own, tokens) ? own : (texts.find((one) => begins(one, tokens)) ?? own);
    const from = tokens.length;
    return (made) =>
      made.length > from && made.at(-1) === eos ? null : (text[made.length] ?? null);
  };
}

async function converse(
  { prompt: first }: Task,
  turns: readonly Turn[],
  answer: (prompt: readonly number[]) => Promise<number[]>,
  wait: (ms: number) => Promise<void>,
): Promise<void> {
  const prompt = [...first];
  for (const [i, { output, observation, toolS }] of turns.entries()) {
    const said = await answer(prompt);
    if (said.join() !== output.join()) throw new Error(`another text than planned: ${said}`);
    prompt.push(...output, ...observation);
    if (i + 1 < turns.length) await wait(toolS * 1000);
  }
}

/** A modelled server as a worker over plain HTTP: it says nothing of what its prefix cache holds. */
class ModelledWorker extends StubWorker {
  readonly workerId: WorkerId;
  readonly name = "modelled";
  readonly keepsKv = true;
  readonly capacity;
  readonly #server: ModelledServer;
  readonly #nextOf: NextOf;
  readonly #runs = new Map<RequestId, ModelledRequest>();
  #events: WorkerEvent[] = [];

  constructor(id: number, server: ModelledServer, nextOf: NextOf, sharesKv: boolean) {
    super();
    const { slots, kvBlocks, blockTokens } = server.sizes;
    this.workerId = workerId(id);
    this.#server = server;
    this.#nextOf = nextOf;
    const kv = {
      kvTokens: kvBlocks * blockTokens,
      kvBlockTokens: blockTokens,
      kvBytesPerToken: 0,
      sharesPrompts: true,
      sharesKv,
    };
    this.capacity = { slots, ahead: slots / 8, contextTokens: CONTEXT_TOKENS, ...kv };
  }

  send(commands: readonly WorkerCommand[]): void {
    for (const command of commands) {
      if (command.kind === "run") this.#run(command);
      else if (command.kind === "export") {
        const { requestId } = command;
        this.#end(requestId);
        this.#events.push({ kind: "exported", requestId, kv: null });
      } else if (command.kind === "park") this.#end(command.requestId);
      else if (command.kind === "release") {
        const run = this.#runs.get(command.requestId);
        if (run !== undefined) this.#server.drop(run);
        this.#runs.delete(command.requestId);
      }
    }
  }

  /** Whether it had anything to tell. */
  report(): boolean {
    const events = this.#events.splice(0);
    if (events.length > 0) this.tell(weightEpoch(0), [...events, this.#stats()]);
    return events.length > 0;
  }

  #end(requestId: RequestId): void {
    const run = this.#runs.get(requestId);
    if (run === undefined) return;
    this.#server.drop(run);
    this.#runs.delete(requestId);
    this.#events.push({ kind: "chunk_done", requestId, finish: null });
  }

  #run({ request, output, chunkTokens }: Extract<WorkerCommand, { kind: "run" }>): void {
    const { requestId, prompt } = request;
    const tokens = [...prompt, ...output];
    const next = this.#nextOf(tokens, request.sampleIndex);
    const end = tokens.length + chunkTokens;
    let offset = output.length;
    const added = this.#server.add({
      tokens,
      next: (all) => (all.length >= end ? null : next(all)),
      said: (token) => {
        const said = { tokens: Int32Array.of(token), logprobs: new Float32Array(1), top: null };
        this.#events.push({ kind: "tokens", requestId, offset, ...said });
        offset += 1;
      },
      ended: () => {
        this.#runs.delete(requestId);
        const finish = next(added.tokens) === null ? "stop" : null;
        this.#events.push({ kind: "chunk_done", requestId, finish });
      },
    });
    this.#runs.set(requestId, added);
  }

  #stats(): WorkerEvent {
    const { outputTokens, computedTokens: prefillTokens, preemptions } = this.#server;
    const stats = { ...NO_WORKER_STATS, outputTokens, prefillTokens, preemptions };
    return { kind: "stats", stats };
  }
}

interface SimulatedParts {
  readonly tasks: readonly Task[];
  readonly engines: number;
  readonly sizes: ServerSizes;
  /** false: the sidecar finds sessions by their texts. */
  readonly isNamed?: boolean;
}

export async function simulated(
  system: ModelledSystem,
  { tasks, engines, sizes, isNamed = true }: SimulatedParts,
): Promise<AgentsRun> {
  const clock = new ManualClock();
  const pool = system === "foretoken_pool" ? new Set<number>() : null;
  const servers = Array.from({ length: engines }, () => new ModelledServer(sizes, pool));
  const nextOf = nextIn(tasks);
  const workers = servers.map((server, i) => new ModelledWorker(i, server, nextOf, pool !== null));
  const sidecar = newSidecar(clock, {
    ...{ chunkTokens: null, draft: "off", vocabularySize: 2 ** 20 },
    limits: { requestsMax: 1e5, groupsMax: 1e4, keptBytesMax: 2 ** 30 },
  });
  for (const worker of workers) sidecar.rollout.addWorker(worker);
  const events = new Timeline<() => void>();
  const at = (ms: number, act: () => void): void => events.add(clock.nowMs() + ms, act);
  const stepping = servers.map(() => false);
  const run = (i: number): void => {
    const server = servers[i];
    if (server === undefined || stepping[i]) return;
    const { ms, tell } = server.step();
    if (ms === 0) return;
    stepping[i] = true;
    at(ms, () => {
      stepping[i] = false;
      tell();
      workers[i]?.report();
    });
  };
  let sent = 0;
  const pick = (session: number): number => {
    if (system === "sticky") return session % engines;
    if (system === "round_robin") return sent++ % engines;
    const loads = servers.map(({ inFlight }) => inFlight);
    return loads.indexOf(Math.min(...loads));
  };
  const answer = async (session: number, prompt: readonly number[]): Promise<number[]> =>
    await new Promise((resolve) => {
      if (!system.startsWith("foretoken_")) {
        const tokens = [...prompt];
        const next = nextOf(prompt, session % (tasks[0]?.siblings.length ?? 1));
        const ended = (): void => resolve(tokens.slice(prompt.length));
        servers[pick(session)]?.add({ tokens, next, said: () => {}, ended });
        return;
      }
      const spec = {
        ...{ prompt: Int32Array.from(prompt), n: 1, seeded: false, group: null, priority: 0 },
        ...{
          session: isNamed ? String(session) : null,
          sampling: samplingOf({ tokensMax: OUTPUT_TOKENS_MAX }),
        },
      };
      sidecar.generate(spec, {
        tokens: () => {},
        restarted: () => {},
        finished: ({ response }) => resolve([...response.tokens()]),
      });
    });
  const wait = async (ms: number): Promise<void> => await new Promise((done) => at(ms, done));
  const ends: number[] = [];
  const sessions = tasks.flatMap((task) => task.siblings.map((turns) => ({ task, turns })));
  for (const [i, { task, turns }] of sessions.entries()) {
    void converse(task, turns, (prompt) => answer(i, prompt), wait).then(() => {
      ends.push(clock.nowMs() / 1000);
    });
  }
  while (ends.length < sessions.length) {
    do {
      for (let i = 0; i < 16; i += 1) await Promise.resolve();
    } while (workers.filter((worker) => worker.report()).length > 0);
    for (let i = 0; i < engines; i += 1) run(i);
    if (events.nextMs === Number.POSITIVE_INFINITY) {
      if (ends.length < sessions.length) throw new Error(`${system}: nothing goes on`);
      break;
    }
    clock.advance(events.nextMs - clock.nowMs());
    events.take()?.();
  }
  return figuresOf(ends, {
    promptTokens: sumOf(servers, (server) => server.promptTokens),
    computedTokens: sumOf(servers, (server) => server.computedTokens),
    preempted: sumOf(servers, (server) => server.preemptions),
    rows: servers.flatMap(({ rows }) => rows),
    proxyCpuS: 0,
    apiCpuS: 0,
  });
}
