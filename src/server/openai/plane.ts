// The data plane: the model, and what makes answers of requests to it, in two steps after the body is read: a plan, and
// a job.

import type { Encoder } from "../../text/text.ts";
import type { EngineCalls } from "../engine-calls.ts";
import type { GenerationSpec, Sidecar } from "../sidecar.ts";
import type { EndsOfTurns } from "./continuation.ts";
import { Planner, type PlannerOptions } from "./plan.ts";
import { ChatRenderer } from "./rendering.ts";
import { ServedModel, type ServedModelOptions } from "./served-model.ts";
import { type JobLimits, Jobs, type JobsOptions } from "./submit.ts";

export interface DataPlaneLimits extends JobLimits, Pick<PlannerOptions, "responsesMax"> {}

const LIMITS: DataPlaneLimits = {
  responsesMax: 16_384,
  stallMsMax: 30_000,
  graceMs: 30_000,
  leftMax: 1024,
  keptBytesMax: 256 * 2 ** 20,
};

type Optional = Pick<PlannerOptions, "expected" | "sessionHeaders" | "chats"> &
  Pick<JobsOptions, "failed" | "journals" | "trajectories" | "after" | "variesSeeds">;

export interface DataPlaneOptions extends ServedModelOptions, Partial<Optional> {
  readonly sidecar: Sidecar;
  readonly encoder: Encoder;
  /** Routes that only engines have. Default: none has any. */
  readonly engines?: EngineCalls;
  readonly limits?: Partial<DataPlaneLimits>;
}

export class DataPlane {
  readonly model: ServedModel;
  readonly encoder: Encoder;
  readonly chats: ChatRenderer;
  readonly planner: Planner;
  readonly jobs: Jobs;

  constructor(options: DataPlaneOptions) {
    const { sidecar, encoder, journals = null, trajectories, sessionHeaders = [] } = options;
    const { variesSeeds = () => false } = options;
    const { engines = null, after = later, failed = nothing, expected = nothing } = options;
    const limits = { ...LIMITS, ...options.limits };
    const model = new ServedModel(options, () => sidecar.contextTokens);
    const chats = options.chats ?? new ChatRenderer({ encoder, engines });
    this.model = model;
    this.encoder = encoder;
    this.chats = chats;
    const textsBefore = (spec: GenerationSpec): readonly EndsOfTurns[] => {
      const { session = null, group } = spec;
      if (session !== null && trajectories !== undefined) {
        return trajectories.textsBefore({ name: session, group });
      }
      const text = sidecar.turnBefore(spec);
      return text === null ? [] : [[() => text]];
    };
    this.planner = new Planner({
      textsBefore,
      model,
      sidecar,
      encoder,
      chats,
      engines,
      expected,
      sessionHeaders,
      responsesMax: limits.responsesMax,
    });
    const shared = { model, sidecar, encoder, limits, failed, journals, trajectories, after };
    this.jobs = new Jobs({ ...shared, variesSeeds });
  }
}

function nothing(): void {}

function later(ms: number, run: () => void): () => void {
  const timer = setTimeout(run, ms);
  timer.unref();
  return () => clearTimeout(timer);
}
