// What is polled of a server, by its kind: its metrics, what its weights are called, and whether it is there.

import { errorText } from "../../core/base/errors.ts";
import type { HttpAnswer } from "./http.ts";
import { readMetrics, type ServerMetrics } from "./metrics.ts";
import { pollSglang, type SglangServer } from "./sglang/server.ts";

export interface Polled {
  readonly answer: HttpAnswer;
  /** null: there are metrics. */
  readonly problem: string | null;
  readonly metrics: ServerMetrics | null;
}

export interface Watch {
  readonly poll: (get: (path: string) => Promise<HttpAnswer>) => Promise<Polled>;
  /** Its JSON has `weight_version`. */
  readonly versionPath: string;
  /** Answers while requests are silent: queued, preempted, or paused. */
  readonly healthPath: string;
}

const METRICS = "/metrics";

export function watchOf(sglang: SglangServer | null): Watch {
  if (sglang === null) {
    return {
      poll: async (get) => metricsIn(await get(METRICS)),
      versionPath: "/weight_info",
      healthPath: "/health",
    };
  }
  const { modelPath: versionPath, loadPath } = sglang;
  return {
    poll: async (get) => {
      const { answer, metrics } = await pollSglang(get, sglang);
      if (metrics !== null) return { answer, problem: null, metrics };
      const problem = `${loadPath}: ${problemOf(answer) ?? "the answer is not what was expected"}`;
      return { answer, problem, metrics };
    },
    versionPath,
    // Its /health generates a token, which it cannot while it is paused.
    healthPath: loadPath,
  };
}

function metricsIn(answer: HttpAnswer): Polled {
  const problem = problemOf(answer);
  if (problem !== null || answer.kind !== "answer") {
    return { answer, problem: `${METRICS}: ${problem}`, metrics: null };
  }
  try {
    return { answer, problem: null, metrics: readMetrics(answer.body) };
  } catch (error) {
    return { answer, problem: `${METRICS}: ${errorText(error)}`, metrics: null };
  }
}

/** null: it is as it should be. */
export function problemOf(answer: HttpAnswer): string | null {
  if (answer.kind === "unreachable") return answer.message;
  return answer.status === 200 ? null : `HTTP ${answer.status}`;
}
