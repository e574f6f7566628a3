// The journal of one rollout: what its client asked for, and what there is of its responses. A process that takes the
// place of this one begins the rollout again from it.

import { AppError } from "../../core/base/errors.ts";
import { type WeightEpoch, type WeightsId, weightEpoch, weightsId } from "../../core/base/ids.ts";
import { JournalLog } from "../../core/journal/log.ts";
import type { SavedRun } from "../../core/journal/read.ts";
import type { EpochRecord } from "../../core/journal/records.ts";
import type { Request } from "../../core/request/buffer.ts";
import type { DrawKey } from "../../core/request/request.ts";
import type { SavedOutput } from "../../core/request/saved-output.ts";
import type { ControlRequest } from "../../core/rollout/worker.ts";
import type { Recipe } from "../../pool/give-weights.ts";
import type { RolloutPlan } from "./plan.ts";

/** A journal's file. Its writes are behind the tokens; a failure ends it, and is reported elsewhere. */
export interface RunFile {
  /** Something is new in its log. */
  touch(): void;
  /** Resolves when what is in the log now has been written, or never will be. */
  settled(): Promise<void>;
  close(): Promise<void>;
  /** The rollout is not kept any more. */
  remove(): Promise<void>;
}

/** Where the journals of rollouts are. */
export interface RunFiles {
  /** The file of a run of an earlier process, or null, a new one. */
  open(log: JournalLog, saved: SavedRun | null): RunFile;
}

/** The weights of an epoch. */
export interface HeldWeights {
  readonly epoch: WeightEpoch;
  /** What clients know them by. */
  readonly version: string;
  /** The engines' name of them; null: they give none. */
  readonly weights: WeightsId | null;
  /** What gives them to an engine. */
  readonly base: Recipe["base"];
}

const FORMAT = 1;

/** What the first record says. */
interface Header extends HeldWeights {
  readonly format: 1;
  readonly id: string;
  /** Of the body that asked for it. */
  readonly hash: string;
  readonly plan: RolloutPlan;
  /** By group, of its responses. */
  readonly draws: readonly (readonly DrawKey[])[];
}

/** A rollout of an earlier process. */
export interface SavedRollout extends Header {
  readonly run: SavedRun;
}

/** @throws AppError invalid_config: the journal is of something else. */
export function savedRollout(run: SavedRun): SavedRollout {
  const { format } = run.header;
  if (format !== FORMAT) {
    const problem = `is of format ${JSON.stringify(format)}, and this release reads ${FORMAT}`;
    throw new AppError("invalid_config", `--journal: ${run.name} ${problem}`);
  }
  if (!isHeader(run.header)) {
    const problem = "is no journal of /v1/rollouts; use another folder for `foretoken rollout`";
    throw new AppError("invalid_config", `--journal: ${run.name} ${problem}`);
  }
  const { header } = run;
  const groups = header.plan.groups.map((group) => ({
    ...group,
    prompt: Int32Array.from(group.prompt),
  }));
  return { ...header, plan: { ...header.plan, groups }, run };
}

/** As far as the start of a server depends on it; the rest was checked when the journal began. */
function isHeader(header: object): header is Header {
  const { format, id, hash, plan, draws, epoch, version } = header as Partial<Header>;
  const texts = [id, hash, version].every((text) => typeof text === "string");
  const { groups } = Object(plan) as Partial<RolloutPlan>;
  const hasPrompts =
    Array.isArray(groups) && groups.every((group) => Array.isArray(Object(group).prompt));
  return format === 1 && texts && isEpoch(epoch) && Array.isArray(draws) && hasPrompts;
}

function isEpoch(value: unknown): boolean {
  return Number.isInteger(value) && Number(value) >= 0 && Number(value) <= 0xffffffff;
}

type SavedWeights = HeldWeights & { readonly run: Pick<SavedRun, "epochs"> };

/** Whether it was written as such. */
export function isHeldWeights(value: unknown): value is HeldWeights {
  const { epoch, version, weights, base } = Object(value) as Partial<HeldWeights>;
  const isNamed = typeof version === "string" && (weights === null || typeof weights === "string");
  return isEpoch(epoch) && isNamed && base !== undefined;
}

/** All weights that journals name, by epoch. */
export function savedWeights(saved: readonly SavedWeights[]): HeldWeights[] {
  return saved
    .flatMap(({ epoch, version, weights, base, run }) => [
      heldIn({ epoch, version, weights, base }),
      ...run.epochs.map(heldIn),
    ])
    .sort((a, b) => a.epoch - b.epoch);
}

/** The newest weights that a journal names; null: there is no journal. */
export function lastWeights(saved: readonly SavedWeights[]): HeldWeights | null {
  const all = savedWeights(saved);
  const newest = all.at(-1)?.epoch;
  return all.find(({ epoch }) => epoch === newest) ?? null;
}

/** Of a journal without them, or with others than this version writes, weights and base are not known. */
function heldIn(
  record: Pick<EpochRecord, "epoch" | "version"> & {
    readonly weights?: unknown;
    readonly base?: unknown;
  },
): HeldWeights {
  const { epoch, version, weights, base } = record;
  const { method, path } = Object(base) as Partial<ControlRequest>;
  const isRequest = typeof method === "string" && typeof path === "string";
  return {
    epoch: weightEpoch(epoch),
    version,
    weights: typeof weights === "string" ? weightsId(weights) : null,
    base: isRequest || base === "unknown" ? (base as Recipe["base"]) : "first",
  };
}

export class RunJournal {
  readonly #log = new JournalLog();
  readonly #file: RunFile;

  /** `saved`: it continues the journal of an earlier process. */
  constructor(files: RunFiles, saved: SavedRun | null) {
    this.#file = files.open(this.#log, saved);
  }

  /** The first record of a journal that begins. */
  describe<H extends HeldWeights>(header: H): void {
    this.#log.note(JSON.parse(JSON.stringify({ format: FORMAT, ...header }, asArrays)));
    this.#file.touch();
  }

  /** `saved`: what the response begins with. */
  began(request: Request, stream: number, saved: SavedOutput | null): void {
    if (saved?.finish == null) this.#log.follow(request, stream, saved);
  }

  changed(request: Request): void {
    this.#log.changed(request);
    this.#file.touch();
  }

  finished(request: Request): void {
    this.#log.finished(request);
    this.#file.touch();
  }

  /** Resolves when all that has finished is in the file, or never will be. */
  settled(): Promise<void> {
    return this.#file.settled();
  }

  advanced(held: HeldWeights): void {
    this.#log.note({ type: "epoch", ...held } satisfies EpochRecord);
    this.#file.touch();
  }

  close(): Promise<void> {
    return this.#file.close();
  }

  remove(): Promise<void> {
    return this.#file.remove();
  }
}

/** JSON has no typed arrays. */
function asArrays(_key: string, value: unknown): unknown {
  return ArrayBuffer.isView(value) && !(value instanceof DataView)
    ? Array.from(value as Int32Array)
    : value;
}
