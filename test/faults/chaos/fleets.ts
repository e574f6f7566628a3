// The fleets of a chaos run: processes of stand-ins for vLLM servers, and real vLLM servers; each with what decides whether its
// responses are right.

import { mkdtempSync } from "node:fs";
import { join } from "node:path";
import type { FoundVllm } from "../../../src/tools/up/find-vllm.ts";
import { gpusOf, visibleGpus } from "../../../src/tools/up/gpus.ts";
import { freePorts } from "../../../src/tools/up/ports.ts";
import { startStandIn } from "../process.ts";
import { Fleet, HOST } from "./fleet.ts";
import { Foretold, pathOf } from "./foretold.ts";
import { RestartedProcess, VllmServer } from "./members.ts";
import type { Installation, Oracle } from "./oracle.ts";
import { LINKS } from "./plan.ts";
import { WEIGHTS } from "./response-line.ts";
import { Scoring } from "./scoring.ts";

/** Context of a vLLM server. */
const CONTEXT_TOKENS = 512;
/** A step takes as long as faults need to come in the middle of a chunk. */
const STAND_IN = { slots: 2, stepMs: 8, isExact: true, weightsPath: pathOf(WEIGHTS[0]) };
/** A rollout takes one to three seconds, and a server that does not answer is given up after some more. */
const ROLLOUT_MS_MAX = 120_000;
/** Both servers may have to start, one after the other. */
const VLLM_ROLLOUT_MS_MAX = 600_000;

export interface Fleets {
  readonly oracle: Oracle;
  /** A new one. @throws AppError worker_failed. */
  start(): Promise<Fleet>;
}

/** `tokenizer`: a Hugging Face directory. `folder`: for their files. */
export function standInFleets(tokenizer: string, folder: string): Fleets {
  return {
    oracle: new Foretold(),
    start: () =>
      Fleet.start({
        members: freePorts(LINKS, HOST).map(
          (port) => new RestartedProcess(port, () => startStandIn({ ...STAND_IN, port })),
        ),
        sidecarArgs: ["--tokenizer", tokenizer],
        rolloutMsMax: ROLLOUT_MS_MAX,
        folder: mkdtempSync(join(folder, "fleet-")),
      }),
  };
}

/**
 * Fleets of vLLM servers with `installation.model`, a Hugging Face directory. @throws AppError usage: the machine has
 * too few GPUs.
 */
export function vllmFleets(installation: Installation, found: FoundVllm, folder: string): Fleets {
  const { model } = installation;
  const gpus = found.build.isCpu
    ? null
    : gpusOf({ visible: visibleGpus(process.env), servers: LINKS, perServer: 1 });
  let servers: VllmServer[] = [];
  return {
    oracle: new Scoring(installation, folder, () => servers),
    start: () => {
      const logs = mkdtempSync(join(folder, "fleet-"));
      servers = freePorts(LINKS, HOST).map((port, i) => {
        const common = { found, model, host: HOST, port, contextTokens: CONTEXT_TOKENS };
        return new VllmServer({ ...common, gpus: gpus?.[i] ?? null, folder: logs });
      });
      return Fleet.start({
        members: servers,
        folder: logs,
        sidecarArgs: ["--tokenizer", model],
        rolloutMsMax: VLLM_ROLLOUT_MS_MAX,
      });
    },
  };
}
