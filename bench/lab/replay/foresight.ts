// Drafts of a replay by somebody who knows the recorded responses: those that need more than the past (late, tree, copies,
// oracle), and of every draft, what its tokens could have been.

import { present } from "../../../src/core/base/assert.ts";
import type { GroupId } from "../../../src/core/base/ids.ts";
import { DRAFT_TOKENS_MAX, type Drafter, type Drafts } from "../../../src/core/draft/drafter.ts";
import type { History } from "../../../src/core/draft/history.ts";
import { promptKey } from "../../../src/core/request/prompt-key.ts";
import { acceptedOf } from "../../../src/tools/replay/acceptance.ts";
import { CONTEXT, Followers, type Keys, keysOf } from "../../../src/tools/replay/followers.ts";
import { draftsOf } from "../../../src/tools/replay/head.ts";
import { DRAFTERS, type LiveResponse, type Tally } from "../../../src/tools/replay/replay.ts";
import { CopiedText, FollowedTokens } from "./known-text.ts";
import { lateDraft, type Table, tableOf } from "./late-drafts.ts";

/**
 * self, grouped, history: as `foretoken replay`. late: as grouped, from what was known a step before (late-drafts.ts).
 * tree: as grouped, trees. copies and oracle draft only what is right: known-text.ts.
 */
export const LAB_DRAFTERS = [...DRAFTERS, "late", "tree", "copies", "oracle"] as const;
export type LabDrafter = (typeof LAB_DRAFTERS)[number];

/** Where siblings have said little yet. */
export const FIRST_TOKENS = 64;

/** Sums over the steps of one group's responses. */
const nothing = () => ({
  /** Tokens that drafts of the same lengths would have had accepted, had their tokens been those of `copies`, `oracle`. */
  copied: 0,
  followed: 0,
  /** Steps within the first FIRST_TOKENS of a response, and what they accepted. */
  firstSteps: 0,
  firstAccepted: 0,
});
export type Foreseen = ReturnType<typeof nothing>;

/** A response as far as it had come in the last round. */
interface Followed extends LiveResponse {
  /** The text of its source, of which the number is among all, and where the response ends in it. */
  readonly text: CopiedText;
  readonly keys: Keys;
  end: CopiedText["begin"];
  at: number;
  /** The token before the next one; undefined: there is none. */
  last: number | undefined;
  /** Late drafts: the table of the round before; the tokens since, and the CONTEXT tokens before them and behind. */
  table: Table | null;
  since: Int32Array;
  before: readonly number[];
  tail: readonly number[];
}

/** A response, and how many of its next tokens `copies` and `oracle` would draft. */
type Known = { readonly one: Followed; readonly copied: number; readonly followed: number };

/** Width 0.05: narrower bins of a small replay hold too few tokens to mean anything. */
const BINS = 20;

/** How far the probabilities of a drafter can be believed. */
class Calibration {
  readonly #bins = Array.from({ length: BINS }, () => ({ count: 0, probability: 0, accepted: 0 }));

  /** `probability`: that the path up to and including the token is accepted. */
  add(probability: number, isAccepted: boolean): void {
    const bin = this.#bins[Math.min(BINS - 1, Math.max(0, Math.floor(probability * BINS)))];
    if (bin === undefined) return;
    bin.count += 1;
    bin.probability += probability;
    bin.accepted += Number(isAccepted);
  }

  /**
   * The bins that hold tokens, lowest probability first: probabilities p with from <= p < to, 1 in the last one. Of the
   * tokens drafted in each: their number, their mean probability, and the share that was accepted.
   */
  bins() {
    return this.#bins.flatMap(({ count, probability, accepted }, i) => {
      const means = { probability: probability / count, accepted: accepted / count };
      return count === 0 ? [] : [{ from: i / BINS, to: (i + 1) / BINS, count, ...means }];
    });
  }

  /**
   * Expected calibration error (Guo et al. 2017, section 2): the mean over drafted tokens of their
   * bin's |probability - accepted|. Null if nothing was drafted.
   */
  error(): number | null {
    let tokens = 0;
    let sum = 0;
    for (const { count, probability, accepted } of this.bins()) {
      tokens += count;
      sum += count * Math.abs(probability - accepted);
    }
    return tokens === 0 ? null : sum / tokens;
  }
}

export class Foresight {
  readonly calibration = new Calibration();
  readonly #drafter: Drafter;
  readonly #kind: LabDrafter;
  readonly #history: History | undefined;
  readonly #open = new Map<LiveResponse, Followed>();
  readonly #texts = new Map<GroupId, CopiedText>();
  readonly #foreseen = new Map<Tally, Foreseen>();
  readonly #followedTokens = new FollowedTokens();
  /** null: drafts are not late. */
  readonly #followers: Followers | null;

  constructor(drafter: Drafter, kind: LabDrafter, history?: History) {
    this.#drafter = drafter;
    this.#kind = kind;
    this.#history = history;
    this.#followers = kind === "late" ? new Followers() : null;
  }

  of(tally: Tally): Foreseen {
    return this.#foreseen.getOrInsertComputed(tally, nothing);
  }

  /** The drafts of a round of the replay. */
  propose(live: readonly LiveResponse[]): Drafts {
    this.#catchUp();
    for (const one of live) if (!this.#open.has(one)) this.#open.set(one, this.#begin(one));
    const known = live.map((response): Known => {
      const one = present(this.#open.get(response), "it has begun");
      const next = one.response.subarray(one.at, one.at + one.query.tokensMax);
      const copied = one.text.reach(one.last, next);
      return { one, copied, followed: this.#followedTokens.reach(one.last, next) };
    });
    const drafts = this.#drafts(known);
    for (const [i, { one, copied, followed }] of known.entries()) {
      const drafted = (drafts.start[i + 1] ?? 0) - (drafts.start[i] ?? 0);
      const accepted = acceptedOf(drafts, i, one, (probability, isAccepted) =>
        this.calibration.add(probability, isAccepted),
      );
      const foreseen = this.of(one.tally);
      foreseen.copied += Math.min(copied, drafted);
      foreseen.followed += Math.min(followed, drafted);
      if (one.at >= FIRST_TOKENS) continue;
      foreseen.firstSteps += 1;
      foreseen.firstAccepted += accepted;
    }
    return drafts;
  }

  /** Takes in what has come since the last round. */
  #catchUp(): void {
    const texts = new Set<CopiedText>();
    for (const [live, one] of this.#open) {
      const tokens = live.response.subarray(one.at, live.at);
      this.#followedTokens.append(one.last, tokens);
      one.end = one.text.append(one.end, tokens);
      one.at = live.at;
      one.last = tokens.at(-1);
      one.since = tokens;
      one.before = one.tail;
      one.tail = [...one.tail, ...tokens].slice(-CONTEXT);
      if (live.at === live.response.length) this.#open.delete(live);
      else texts.add(one.text);
    }
    for (const [id, text] of this.#texts) if (!texts.has(text)) this.#texts.delete(id);
  }

  #begin(live: LiveResponse): Followed {
    const { prompt, query } = live;
    const number = Number(query.groupId) + 1;
    const text = this.#texts.getOrInsertComputed(query.groupId, () => {
      if (this.#followers !== null) follow(this.#followers, keysOf(number, -1), [0, 0, 0], prompt);
      this.#followedTokens.append(undefined, prompt);
      return new CopiedText(prompt, this.#history?.past(promptKey(prompt)) ?? []);
    });
    const tail = [0, 0, 0, ...prompt.subarray(-CONTEXT)].slice(-CONTEXT);
    return {
      ...live,
      text,
      keys: keysOf(number, query.sampleIndex),
      end: text.begin,
      last: prompt.at(-1),
      table: null,
      since: prompt.subarray(0, 0),
      before: tail,
      tail,
    };
  }

  #drafts(known: readonly Known[]): Drafts {
    const followers = this.#followers;
    if (followers !== null) return this.#lateDrafts(known, followers);
    const kind = this.#kind;
    if (kind !== "copies" && kind !== "oracle") {
      const queries = known.map(({ one }) => ({ ...one.query, tree: kind === "tree" }));
      return this.#drafter.propose(queries);
    }
    const right = known.map(({ one: { response, at }, copied, followed }) => {
      const tokens = response.subarray(at, at + (kind === "copies" ? copied : followed));
      return Array.from(tokens, (token) => ({ token, probability: 1 }));
    });
    return draftsOf(right);
  }

  /** Walks on the tables of the round before; those that are made now are for the next. */
  #lateDrafts(known: readonly Known[], followers: Followers): Drafts {
    const made = this.#drafter.propose(
      known.map(({ one: { query } }) => {
        const tokensMax = Math.min(2 * query.tokensMax + 2, DRAFT_TOKENS_MAX);
        return { ...query, tokensMax, probabilityMin: 0, tree: "table" as const };
      }),
    );
    const paths = known.map(({ one }, i) => {
      const path = lateDraft(one, followers, one.query);
      one.table = tableOf(made, i, one.at);
      return path;
    });
    for (const { one } of known) follow(followers, one.keys, one.before, one.since);
    return draftsOf(paths);
  }
}

/** `tokens` have come behind `before`. */
function follow(
  followers: Followers,
  keys: Keys,
  before: readonly number[],
  tokens: Int32Array,
): void {
  const tail = [...before];
  for (const token of tokens) {
    followers.take(keys, tail, token);
    tail.push(token);
    tail.shift();
  }
}
