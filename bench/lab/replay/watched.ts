// A drafter that knows the recorded responses, around the production one, which a replay drives as any other: it makes the
// drafts that need more than the past (late, tree, copies, oracle), and says of every draft what its tokens could have been.

import { assert, present } from "../../../src/core/base/assert.ts";
import type { GroupId } from "../../../src/core/base/ids.ts";
import {
  DRAFT_TOKENS_MAX,
  type Drafter,
  type DraftQuery,
  type Drafts,
  type UpdateResult,
} from "../../../src/core/draft/drafter.ts";
import type { History } from "../../../src/core/draft/history.ts";
import { acceptedOf } from "../../../src/tools/replay/acceptance.ts";
import type { TraceGroup } from "../../../src/tools/replay/recordings.ts";
import { Calibration } from "./calibration.ts";
import { CONTEXT, Followers, type Keys, keysOf } from "./followers.ts";
import { CopiedText, FollowedTokens } from "./known-text.ts";
import { draftsOf, lateDraft, type PathToken, type Table, tableOf } from "./late-drafts.ts";

/**
 * self, grouped, history: as `foretoken replay`. late: as grouped, from what was known a step before (late-drafts.ts).
 * tree: as grouped, trees. copies and oracle draft only what is right: known-text.ts.
 */
export const LAB_DRAFTERS = [
  "self",
  "grouped",
  "history",
  "late",
  "tree",
  "copies",
  "oracle",
] as const;
export type LabDrafter = (typeof LAB_DRAFTERS)[number];

/** Where siblings have said little yet. */
export const FIRST_TOKENS = 64;

/** Sums over the steps of one group's responses. */
export interface Foreseen {
  /** Tokens that drafts of the same lengths would have had accepted, had their tokens been those of `copies`, `oracle`. */
  copied: number;
  followed: number;
  /** Steps within the first FIRST_TOKENS of a response, and what they accepted. */
  firstSteps: number;
  firstAccepted: number;
}

/** A response as far as it has come. */
interface Followed {
  readonly response: Int32Array;
  readonly keys: Keys;
  at: number;
  /** Where it ends in the source's text. */
  end: number;
  /** The token before the next one; undefined: there is none. */
  last: number | undefined;
  /** Late drafts: the table of the step before; the tokens since, and the CONTEXT tokens before them and behind. */
  table: Table | null;
  since: Int32Array;
  before: readonly number[];
  tail: readonly number[];
}

/** A group of the drafter. */
interface Source {
  readonly number: number;
  readonly group: TraceGroup;
  readonly foreseen: Foreseen;
  readonly text: CopiedText;
  readonly followed: Map<number, Followed>;
  isFull: boolean;
}

/** A query's response, and how many of its next tokens `copies` and `oracle` would draft. */
interface Known {
  readonly source: Source;
  readonly one: Followed;
  readonly copied: number;
  readonly followed: number;
}

/** A recorded group whose responses are yet to be registered: so many times, as each of its own or all together. */
interface Coming {
  readonly group: TraceGroup;
  readonly foreseen: Foreseen;
  registrations: number;
}

export class WatchedDrafter implements Drafter {
  readonly calibration = new Calibration();
  /** One of each recorded group, in their order. */
  readonly groups: Foreseen[] = [];
  /** Groups that ran out of room. */
  fullGroups = 0;
  readonly #inner: Drafter;
  readonly #kind: LabDrafter;
  readonly #history: History | undefined;
  readonly #coming: Coming[] = [];
  readonly #sources = new Map<GroupId, Source>();
  #registered = 0;
  readonly #followedTokens = new FollowedTokens();
  /** null: drafts are not late. */
  readonly #followers: Followers | null;

  constructor(inner: Drafter, kind: LabDrafter, history?: History) {
    this.#inner = inner;
    this.#kind = kind;
    this.#history = history;
    this.#followers = kind === "late" ? new Followers() : null;
  }

  /** The groups, as the replay is to read them. */
  async *watching(groups: AsyncIterable<TraceGroup>): AsyncGenerator<TraceGroup> {
    for await (const group of groups) {
      const foreseen = { copied: 0, followed: 0, firstSteps: 0, firstAccepted: 0 };
      this.groups.push(foreseen);
      const count = group.responses.filter(({ length }) => length > 0).length;
      const registrations = this.#kind === "self" ? count : Math.min(1, count);
      this.#coming.push({ group, foreseen, registrations });
      yield group;
    }
  }

  register(id: GroupId, prompt: Int32Array): void {
    while (this.#coming[0]?.registrations === 0) this.#coming.shift();
    const coming = present(this.#coming[0], "groups are read before they are registered");
    coming.registrations -= 1;
    this.#registered += 1;
    const number = this.#registered;
    if (this.#followers !== null) follow(this.#followers, keysOf(number, -1), [0, 0, 0], prompt);
    this.#followedTokens.append(undefined, prompt);
    const text = new CopiedText(prompt, this.#history?.past(prompt) ?? []);
    const { group, foreseen } = coming;
    const source = { number, group, foreseen, text, followed: new Map(), isFull: false };
    this.#sources.set(id, source);
    this.#inner.register(id, prompt);
  }

  has(id: GroupId): boolean {
    return this.#sources.has(id);
  }

  update(id: GroupId, sampleIndex: number, offset: number, tokens: Int32Array): UpdateResult {
    const source = this.#source(id);
    if (!source.isFull) {
      const result = this.#inner.update(id, sampleIndex, offset, tokens);
      assert(result.kind !== "gap", "every token of a response is sent, in order");
      source.isFull = result.kind === "full";
      if (source.isFull) this.fullGroups += 1;
    }
    const one = this.#followed(source, sampleIndex);
    this.#followedTokens.append(one.last, tokens);
    one.end = source.text.append(one.end, tokens);
    one.at += tokens.length;
    one.last = tokens.at(-1);
    one.since = tokens;
    one.before = one.tail;
    one.tail = [...one.tail, ...tokens].slice(-CONTEXT);
    return { kind: "ok" };
  }

  drop(id: GroupId): void {
    this.#sources.delete(id);
    this.#inner.drop(id);
  }

  clear(): void {
    this.#sources.clear();
    this.#inner.clear();
  }

  propose(queries: readonly DraftQuery[]): Drafts {
    const known = queries.map(({ groupId, sampleIndex, tokensMax }) => {
      const source = this.#source(groupId);
      const one = this.#followed(source, sampleIndex);
      const next = one.response.subarray(one.at, one.at + tokensMax);
      const copied = source.text.reach(one.last, next);
      return { source, one, copied, followed: this.#followedTokens.reach(one.last, next) };
    });
    const drafts = this.#drafts(queries, known);
    for (const [i, { source, one, copied, followed }] of known.entries()) {
      const drafted = (drafts.start[i + 1] ?? 0) - (drafts.start[i] ?? 0);
      const accepted = acceptedOf(drafts, i, one, (probability, isAccepted) =>
        this.calibration.add(probability, isAccepted),
      );
      source.foreseen.copied += Math.min(copied, drafted);
      source.foreseen.followed += Math.min(followed, drafted);
      if (one.at >= FIRST_TOKENS) continue;
      source.foreseen.firstSteps += 1;
      source.foreseen.firstAccepted += accepted;
    }
    return drafts;
  }

  #drafts(queries: readonly DraftQuery[], known: readonly Known[]): Drafts {
    const followers = this.#followers;
    switch (this.#kind) {
      case "copies":
        return draftsOf(known.map(({ one, copied }) => certainPath(one, copied)));
      case "oracle":
        return draftsOf(known.map(({ one, followed }) => certainPath(one, followed)));
      case "tree":
        return this.#inner.propose(queries.map((query) => ({ ...query, tree: true })));
      default:
        return followers === null
          ? this.#inner.propose(queries)
          : this.#lateDrafts(queries, known, followers);
    }
  }

  /** Walks on the tables of the step before; those that are made now are for the next. */
  #lateDrafts(queries: readonly DraftQuery[], known: readonly Known[], followers: Followers) {
    const made = this.#inner.propose(
      queries.map((query) => {
        const tokensMax = Math.min(2 * query.tokensMax + 2, DRAFT_TOKENS_MAX);
        return { ...query, tokensMax, probabilityMin: 0, tree: "table" as const };
      }),
    );
    const paths = known.map(({ one }, i) => {
      const path = lateDraft(one, followers, present(queries[i], "one for each"));
      one.table = tableOf(made, i, one.at);
      return path;
    });
    for (const { one } of known) follow(followers, one.keys, one.before, one.since);
    return draftsOf(paths);
  }

  #source(id: GroupId): Source {
    return present(this.#sources.get(id), "the group is registered");
  }

  #followed({ number, group, text, followed }: Source, sampleIndex: number): Followed {
    return followed.getOrInsertComputed(sampleIndex, () => {
      const { prompt, responses } = group;
      const tail = [0, 0, 0, ...prompt.subarray(-CONTEXT)].slice(-CONTEXT);
      return {
        response: present(responses[sampleIndex], "it was recorded"),
        keys: keysOf(number, sampleIndex),
        at: 0,
        end: text.begin,
        last: prompt.at(-1),
        table: null,
        since: prompt.subarray(0, 0),
        before: tail,
        tail,
      };
    });
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

/** The next tokens of the response. */
function certainPath({ response, at }: Followed, length: number): PathToken[] {
  return Array.from(response.subarray(at, at + length), (token) => ({ token, probability: 1 }));
}
