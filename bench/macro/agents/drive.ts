// One iteration of agents in a closed loop: all sessions begin at once, and each sends its next turn when its answer and
// then its tool's output are there.

import { sumOf } from "../../statistics.ts";
import { cpuSecondsOf, cpuSecondsOfProcess } from "../vllm/cores.ts";
import { forget } from "../vllm/drive.ts";
import { post, readLog, tellPlan } from "../vllm/engine-log.ts";
import type { Servers, System } from "../vllm/systems.ts";
import { workOf } from "./hosts.ts";
import { type AgentSystem, type Placing, placing } from "./systems.ts";
import { OUTPUT_TOKENS_MAX, type Task, transcriptOf } from "./workload.ts";

export type AgentsRun = ReturnType<typeof figuresOf>;

/** What the servers have done in an iteration, all of them together. */
export interface Work {
  readonly promptTokens: number;
  readonly computedTokens: number;
  readonly preempted: number;
  /** Of each step. */
  readonly rows: readonly number[];
  /** CPU seconds of the router or the sidecar; and of the servers' API processes. */
  readonly proxyCpuS: number;
  readonly apiCpuS: number;
}

/** `endsS`: when each session had ended. */
export function figuresOf(endsS: readonly number[], work: Work) {
  const ends = endsS.toSorted((a, b) => a - b);
  const at = (part: number): number => ends[Math.ceil(part * ends.length) - 1] ?? 0;
  return {
    iteration_s: at(1),
    trajectory_p50_s: at(0.5),
    trajectory_p99_s: at(0.99),
    /** From the end of nine tenths of the sessions to that of the last. */
    tail_s: at(1) - at(0.9),
    prompt_tokens: work.promptTokens,
    prompt_tokens_computed: work.computedTokens,
    steps: work.rows.length,
    preempted: work.preempted,
    /** Time of all servers' steps on hosts whose step times were recorded. */
    ...workOf(work.rows),
    proxy_cpu_s: work.proxyCpuS,
    api_cpu_s: work.apiCpuS,
  };
}

interface Planned {
  readonly model: string;
  readonly eos: number;
  readonly tasks: readonly Task[];
}

export async function iterationOf(
  name: AgentSystem,
  system: System,
  planned: Planned,
  servers: Servers,
): Promise<AgentsRun> {
  const { eos, tasks } = planned;
  await servers.use(system);
  await forget(system);
  const prompts = tasks.map(({ prompt }) => prompt);
  const texts = tasks.map(({ siblings }) => siblings.map(transcriptOf));
  await tellPlan(system.urls, { eos, prompts, texts });
  const place = await placing(name, system);
  try {
    const before = cpuOf(system, place);
    const startMs = performance.now();
    const endsS = await Promise.all(
      tasks.flatMap((task, i) =>
        task.siblings.map(async (_, j) => {
          const session = i * task.siblings.length + j;
          await runSession({ ...planned, place, task, session, sibling: j, startMs });
          return (performance.now() - startMs) / 1000;
        }),
      ),
    );
    const after = cpuOf(system, place);
    const { prefills, steps } = await readLog(system.urls);
    const begun = prefills.filter(({ resumed }) => resumed === 0);
    return figuresOf(endsS, {
      promptTokens: sumOf(begun, (one) => one.promptTokens + one.madeTokens),
      computedTokens: sumOf(prefills, ({ computedTokens }) => computedTokens),
      preempted: sumOf(prefills, ({ resumed }) => resumed),
      rows: steps.flat().map(({ rows }) => rows),
      proxyCpuS: after.proxy - before.proxy,
      apiCpuS: after.api - before.api,
    });
  } finally {
    await place.stop();
  }
}

interface SessionParts extends Planned {
  readonly place: Placing;
  readonly task: Task;
  readonly session: number;
  readonly sibling: number;
  /** Sets the iteration's names apart from others'. */
  readonly startMs: number;
}

async function runSession(parts: SessionParts): Promise<void> {
  const { task, session, sibling, startMs } = parts;
  const name = `s${Math.floor(startMs)}-${session}`;
  const prompt = [...task.prompt];
  // Which of the texts the session gets: a sidecar numbers siblings by itself, so its first answer says it.
  let turns = task.siblings[sibling] ?? [];
  for (let turn = 0; turn < turns.length; turn += 1) {
    const made = await answerOf(parts, name, prompt);
    if (turn === 0 && made !== null) {
      turns = task.siblings.find(([first]) => first?.output.join() === made.join()) ?? [];
    }
    const { output, observation, toolS } = turns[turn] ?? { output: [], observation: [], toolS: 0 };
    if (output.length === 0 || (made !== null && made.join() !== output.join())) {
      throw new Error(`session ${session}, turn ${turn}: another text than planned: ${made}`);
    }
    prompt.push(...output, ...observation);
    if (turn + 1 < turns.length) await Bun.sleep(toolS * 1000);
  }
}

/** Token ids; null: the router takes them out of the answer. */
async function answerOf(
  { model, place, session, sibling }: SessionParts,
  name: string,
  prompt: readonly number[],
): Promise<readonly number[] | null> {
  const context = JSON.stringify({ program_id: name, session_id: name });
  const own = { vllm_xargs: { bench_sample: sibling, agentic_context: context } };
  const answer = await post(
    `${place.urlFor(session)}/v1/completions`,
    {
      ...{ model, prompt, max_tokens: OUTPUT_TOKENS_MAX, temperature: 1, return_token_ids: true },
      ...(place.isSidecar ? {} : own),
    },
    { "x-session-id": name },
  );
  const { choices } = answer as { choices: { token_ids?: number[] }[] };
  return choices[0]?.token_ids ?? null;
}

/** All of a server's processes but the engine's. */
const API = /^(?!VLLM::EngineCor)/;

function cpuOf({ fleet }: System, { pid }: Placing): { proxy: number; api: number } {
  return {
    proxy: pid === null ? 0 : cpuSecondsOfProcess(pid),
    api: cpuSecondsOf(new Set(fleet.servers.map(({ pid: group }) => group)), API),
  };
}
