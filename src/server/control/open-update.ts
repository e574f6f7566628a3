// An update of several requests, from its start to its finish: which engines have taken all of it, which hold a part
// of it.

import type { Worker } from "../../core/rollout/worker.ts";
import type { Member } from "../../pool/pool.ts";
import { isSuccess, type Outcome } from "./fan-out.ts";

/** Engines that have taken a request, and as which worker: one that was opened again since has lost it. */
export type Taken = ReadonlyMap<Member, Worker>;

export class OpenUpdate {
  /** Engines that have taken every request so far. */
  taken: Taken;
  /** Engines on which it was begun, or may have been. */
  readonly #begun: Map<Member, Worker>;
  /** Those that may hold a part of other weights. */
  readonly #changed = new Map<Member, Worker>();
  /** Those that have taken another start, until a part follows it. */
  #restarted: Taken | null = null;

  constructor(start: Outcome) {
    this.taken = takenIn(start);
    this.#begun = new Map(touchedIn(start));
  }

  /** Some engine has, or may have, other weights than those of the epoch. */
  get isChanged(): boolean {
    return this.#changed.size > 0;
  }

  get begun(): Taken {
    return this.#begun;
  }

  get changed(): Taken {
    return this.#changed;
  }

  /** Another start: the parts that follow are of the whole weights; what was changed stays changed. */
  again(start: Outcome): void {
    this.#restarted = takenIn(start);
    this.taken = both(this.taken, this.#restarted);
    for (const [member, worker] of touchedIn(start)) this.#begun.set(member, worker);
  }

  part(outcome: Outcome): void {
    if (!mayHaveChanged(outcome)) return;
    for (const [member, worker] of touchedIn(outcome)) {
      this.#begun.set(member, worker);
      this.#changed.set(member, worker);
    }
    this.taken = both(this.#restarted ?? this.taken, takenIn(outcome));
    this.#restarted = null;
  }
}

/** An engine that was opened again since it answered is not among them. */
export function takenIn(outcome: Outcome): Taken {
  const good = outcome.answers.filter(
    ({ member, worker, answer }) => isSuccess(answer) && member.worker === worker,
  );
  return new Map(good.map(({ member, worker }) => [member, worker]));
}

/** Engines that took it, failed in the middle of it, or did not answer. */
function touchedIn({ answers }: Outcome): [Member, Worker][] {
  return answers
    .filter(({ answer }) => answer.status < 400 || answer.status >= 500)
    .map(({ member, worker }) => [member, worker]);
}

export function both(one: Taken, other: Taken): Taken {
  return new Map([...one].filter(([member, worker]) => other.get(member) === worker));
}

/** An engine took it, or failed in the middle of it, or its outcome is unknown. */
export function mayHaveChanged(outcome: Outcome): boolean {
  return touchedIn(outcome).length > 0;
}
