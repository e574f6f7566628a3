// Weight epochs of trainers that update their engines directly, past this server. It learns of an update from the versions
// that requests name (`policy_version`, `weight_version`, a numbered `cache_salt`), and from those that engines report
// (/weight_info, the end of an answer). A version that was not seen before begins the next epoch, so that KV and drafts of
// two versions are never mixed. A client that may generate may not update: requests are not believed where every engine
// names its weights by a digest, since such engines are updated through this server alone. Trainers and engines may name
// one version differently. An engine is stale, and is fenced, if it reports another version than the current one while
// another engine reports the current one.

import type { Clock } from "../core/base/clock.ts";
import { connected, type FleetHost, type Member } from "./engines.ts";
import type { WorkerPool } from "./pool.ts";
import type { WeightsNotice, WeightUpdates } from "./updates.ts";

export interface LearnedEpochsOptions {
  readonly sidecar: FleetHost;
  readonly clock: Clock;
  readonly pool: WorkerPool;
  readonly weights: WeightUpdates;
  readonly notice: (notice: WeightsNotice) => void;
}

/** The weight version that a request names. */
export interface VersionHint {
  readonly version: string | null;
  readonly salt: string | null;
  /** Names the request in the log. */
  readonly by: string;
}

/** Versions remembered, so that a late request that names an older one changes nothing. */
const VERSIONS_MAX = 1024;
/** Requests that must name a version by salt alone before it is accepted; one is enough if nothing else is in flight. */
const SALTS_BELIEVED = 2;
/** vLLM's name for weights without a version. */
const UNNAMED = "default";

export class LearnedEpochs {
  readonly #options: LearnedEpochsOptions;
  /** Versions that were current or named by a request, oldest first. */
  readonly #seen = new Set<string>();
  /** The version that requests of this epoch name; null: none has named one. */
  #requested: string | null = null;
  /** The engines' name for the weights of this epoch; null: not reported yet. */
  #engineName: string | null = null;
  /** A request began the epoch: the next new name that an engine reports belongs to this epoch. */
  #awaitsName = false;
  #salt = { name: "", count: 0 };
  /** A request of this epoch was not believed; this is logged once. */
  #hasDoubted = false;
  /** Since when some engine has reported the current version; null: none does. */
  #currentSinceMs: number | null = null;

  constructor(options: LearnedEpochsOptions) {
    this.#options = options;
    options.sidecar.observe({
      advanced: () => this.#begun(),
      // Engines report the version with the end of an answer, and with their metrics.
      stats: () => this.poll(),
    });
  }

  /** Takes note of the weight version that a request names. Call before the request joins a group. */
  requested({ version, salt, by }: VersionHint): void {
    if (version !== null) this.#expect(version, by);
    else if (salt !== null && salt !== this.#requested) this.#salted(salt, by);
  }

  poll(): void {
    const { weights, pool } = this.#options;
    if (weights.isUpdating) return;
    for (const { member, worker } of connected(pool.members)) {
      const name = worker.weightVersion?.name ?? null;
      const before = member.record.reported;
      if (name === null || name === before) continue;
      pool.tell([member], () => ({ kind: "reports", version: name }));
      this.#read(name, before, `worker ${member.source.name}`);
    }
    this.#judge();
  }

  #expect(version: string, by: string): void {
    if (version === this.#requested) return;
    const { weights } = this.#options;
    if (version === weights.current) {
      this.#requested = version;
      this.#remember(version);
      return;
    }
    if (this.#seen.has(version)) return;
    const isNext = this.#requested !== null && !weights.isUpdating;
    if (isNext && this.#isDoubtful(version, by)) return;
    this.#remember(version);
    if (weights.isUpdating) return;
    if (isNext) {
      this.#begin(version, by);
      this.#awaitsName = true;
    } else weights.nameUnlessNamed(version);
    this.#requested = version;
  }

  /** Whether the request cannot be right: every engine has a digest, so the weights are those of the last update. */
  #isDoubtful(version: string, by: string): boolean {
    const { pool, notice } = this.#options;
    const engines = connected(pool.members);
    const areNamed = engines.every(({ worker }) => (worker.weights ?? null) !== null);
    if (engines.length === 0 || !areNamed) return false;
    if (!this.#hasDoubted) notice({ kind: "doubted", version, by });
    this.#hasDoubted = true;
    return true;
  }

  /** A numbered salt counts versions of the policy (prime-rl); any other salt only separates caches. */
  #salted(salt: string, by: string): void {
    if (this.#seen.has(salt) || !/\d$/.test(salt)) return;
    if (this.#requested === null) {
      this.#remember(salt);
      this.#requested = salt;
      return;
    }
    if (!isLater(salt, this.#requested)) return;
    this.#salt = { name: salt, count: this.#salt.name === salt ? this.#salt.count + 1 : 1 };
    const isAlone = this.#options.sidecar.rollout.unfinished === 0;
    if (isAlone || this.#salt.count >= SALTS_BELIEVED) this.#expect(salt, by);
  }

  /** Takes note that an engine reports another version than before. */
  #read(name: string, before: string | null, by: string): void {
    const { weights } = this.#options;
    const current = this.#engineName;
    if (name === weights.current) this.#engineName = name;
    if (name === UNNAMED || name === this.#engineName || this.#seen.has(name)) return;
    const isFirst = before === null && current === null;
    if (isFirst || this.#awaitsName) {
      this.#awaitsName = false;
      this.#engineName = name;
      this.#remember(name);
      weights.nameUnlessNamed(name);
      return;
    }
    // An engine that is seen for the first time may have old weights; one that has changed has new ones.
    const isNew = before === null ? isLater(name, current ?? "") : !isLater(current ?? "", name);
    if (!isNew) return;
    this.#begin(name, by);
    this.#engineName = name;
  }

  #begin(version: string, by: string): void {
    const { weights, pool, notice } = this.#options;
    notice({ kind: "learned", version, by });
    this.#remember(weights.current);
    this.#remember(version);
    // An engine that reports no version, or reported its last one before this, may have been updated by now.
    const members = connected(pool.members).map(({ member }) => member);
    const hasIt = members.some(({ record }) => record.reported === version);
    const isBehind = ({ record: { reported } }: Member) =>
      reported !== null && reported !== version;
    const behind = hasIt ? members.filter(isBehind) : [];
    const current = new Set(members.filter((member) => !behind.includes(member)));
    weights.begin(version, current, (member) => reasonOf(member, version));
  }

  #begun(): void {
    this.#requested = null;
    this.#engineName = null;
    this.#awaitsName = false;
    this.#currentSinceMs = null;
    this.#hasDoubted = false;
  }

  #judge(): void {
    const { weights, pool, clock, sidecar, notice } = this.#options;
    const current = this.#engineName ?? weights.current;
    const reports = connected(pool.members).flatMap(({ member, worker: { weightVersion } }) =>
      weightVersion == null ? [] : [{ member, ...weightVersion }],
    );
    if (!reports.some(({ name }) => name === current)) this.#currentSinceMs = null;
    else this.#currentSinceMs ??= clock.nowMs();
    const sinceMs = this.#currentSinceMs ?? Number.POSITIVE_INFINITY;
    const { epoch } = sidecar.rollout;
    for (const { member, name, readMs } of reports) {
      const isCurrent = name === current;
      // A report from before another engine had the current version proves nothing.
      if (!isCurrent && readMs <= sinceMs) continue;
      const stale = isCurrent ? null : reasonOf(member, current);
      if (stale !== null && stale !== member.record.stale) {
        notice({ kind: "stale", worker: member.source.name, reason: stale });
      }
      const isCertain = isCurrent && this.#engineName !== null;
      pool.tell([member], () => ({ kind: "judged", stale, epoch: isCertain ? epoch : null }));
    }
  }

  #remember(version: string): void {
    this.#seen.add(version);
    const [oldest] = this.#seen;
    if (this.#seen.size > VERSIONS_MAX && oldest !== undefined) this.#seen.delete(oldest);
  }
}

function reasonOf({ record }: Member, current: string): string {
  const has = record.reported ?? "of no version";
  return `has stale weights: it reports ${has}, the current ones are ${current}`;
}

/** Longer numbers are times or hashes, and would not be exact. */
const NUMBERED = /^(.*?)(\d{1,15})$/s;

/** Whether both end in a number after the same text, and that of `version` is greater: "step-10" is later than "step-9". */
function isLater(version: string, than: string): boolean {
  const [, text, digits] = NUMBERED.exec(version) ?? [];
  const [, before, less] = NUMBERED.exec(than) ?? [];
  return text !== undefined && text === before && Number(digits) > Number(less);
}
