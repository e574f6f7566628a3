// The data plane: the model, and what makes answers of requests to it, in two steps after the body is read: a plan, and
// a job.

import type { Later } from "../../core/base/clock.ts";
import type { Encoder } from "../../text/text.ts";
import { type DataPlaneLimits, type PlaneParts, Planner } from "./plan.ts";
import { ChatRenderer } from "./rendering.ts";
import { ServedModel, type ServedModelOptions } from "./served-model.ts";
import { Jobs } from "./submit.ts";

const LIMITS: DataPlaneLimits = {
  responsesMax: 16_384,
  stallMsMax: 30_000,
  graceMs: 30_000,
  leftMax: 1024,
  keptBytesMax: 256 * 2 ** 20,
};

const later: Later = (run, ms) => {
  const timer = setTimeout(run, ms);
  timer.unref();
  return () => clearTimeout(timer);
};

const DEFAULTS = {
  engines: null,
  trajectories: null,
  journals: null,
  sessionHeaders: [],
  expected: () => {},
  failed: () => {},
  variesSeeds: () => false,
  later,
} satisfies Partial<PlaneParts>;

type Given = Pick<PlaneParts, "sidecar" | "encoder"> &
  Partial<Omit<PlaneParts, "model" | "limits">>;

export type DataPlaneOptions = ServedModelOptions &
  Given & { readonly limits?: Partial<DataPlaneLimits> };

export class DataPlane {
  readonly model: ServedModel;
  readonly encoder: Encoder;
  readonly chats: ChatRenderer;
  readonly planner: Planner;
  readonly jobs: Jobs;

  constructor(options: DataPlaneOptions) {
    const { sidecar, encoder, engines = null } = options;
    const chats = options.chats ?? new ChatRenderer({ encoder, engines });
    const model = new ServedModel(options, () => sidecar.contextTokens);
    const limits = { ...LIMITS, ...options.limits };
    const parts: PlaneParts = { ...DEFAULTS, ...options, chats, model, limits };
    this.model = model;
    this.encoder = encoder;
    this.chats = chats;
    this.planner = new Planner(parts);
    this.jobs = new Jobs(parts);
  }
}
