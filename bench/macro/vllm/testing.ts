// Runs and log entries for the tests beside this file.

import { readMetrics } from "../../../src/engines/vllm/metrics.ts";
import type { Run } from "./drive.ts";
import type { Prefill, Step } from "./engine-log.ts";

export function prefill(fields: Partial<Prefill>): Prefill {
  return {
    ...{ atS: 0, server: 0, group: 0, sample: 0, promptTokens: 10, madeTokens: 0 },
    ...{ foundTokens: 0, computedTokens: 10, isResumed: false },
    ...fields,
  };
}

export function step(fields: Partial<Step>): Step {
  return {
    ...{ beginS: 0, endS: 0, running: 1, waiting: 0, requests: 1, rows: 1, prefillRows: 0 },
    ...{ draftRows: 0, kvShare: 0.5, tokensMade: 1, unfinished: 1, cpuS: 0 },
    ...fields,
  };
}

export function run(fields: Partial<Run>): Run {
  return {
    ...{
      texts: [
        [
          [1, 2, 3],
          [4, 5, 6, 7, 8],
        ],
      ],
      startS: 100,
      finishedS: [1, 2],
      wallS: 2,
      tailS: 1,
    },
    ...{ counters: { ...readMetrics("").counters, generationTokens: 8, acceptedTokens: 4 } },
    ...{ log: { steps: [[], []], prefills: [], ends: [], proposeUs: 0 } },
    ...{ serversCpuS: 3, sidecarCpuS: 0, othersCpuShare: 0.1, idleCpuShare: 0 },
    ...fields,
  };
}
