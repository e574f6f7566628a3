// What a real head and siblings bring together on the bundled model's rollouts, by replay: tokens of a response in a step for
// the head alone, siblings alone and both, as `foretoken replay --head` has them, but with what the head drafted
// (drafts.py), so that both are right about the same easy tokens as often as they are.
//
//   bun bench/lab/heads/count.ts DRAFTS.jsonl [--tokens 7] [--json FILE]
//
// The siblings of a group begin together, 8 or 16; or four at a time, where the first four have no siblings but one
// another, and the last ones twelve that have ended. Early: the first 64 tokens of a response.

import { readFileSync } from "node:fs";
import { textTable } from "../../../src/cli/output.ts";
import { groupId } from "../../../src/core/base/ids.ts";
import { Replica } from "../../../src/core/draft/replica.ts";
import { acceptedOf } from "../../../src/tools/replay/acceptance.ts";
import {
  type Both,
  HEAD_SYSTEMS,
  HeadDrafts,
  type HeadOptions,
} from "../../../src/tools/replay/head.ts";
import type { LiveResponse } from "../../../src/tools/replay/replay.ts";
import { flagsOf, writeReport } from "../../harness.ts";

interface Response {
  readonly tokens: Int32Array;
  /** What the head drafted behind each token. */
  readonly drafts: readonly (readonly number[])[];
}

interface Group {
  readonly prompt: Int32Array;
  readonly responses: Response[];
}

/** Sums over steps of responses. */
interface Sum {
  steps: number;
  drafted: number;
  accepted: number;
}

/** Of siblings that begin together. */
interface Wave {
  readonly early: Sum;
  readonly late: Sum;
}

interface Schedule {
  readonly system: HeadOptions["system"];
  /** Draft tokens of a response in a step, at most. */
  readonly tokensMax: number;
  /** Siblings of a group, and how many of them begin together. */
  readonly siblings: number;
  readonly together: number;
}

const PROBABILITY_MIN = 0.01;
const EARLY_TOKENS = 64;
/** Tokens that a guess weighs as much as. */
const PRIOR = 8;

export function groupsOf(text: string): Group[] {
  const groups = new Map<string, Group>();
  for (const line of text.split("\n").filter((one) => one !== "")) {
    const { group, prompt_token_ids, token_ids, drafts } = JSON.parse(line);
    const prompt = Int32Array.from(prompt_token_ids);
    const found = groups.getOrInsertComputed(group, () => ({ prompt, responses: [] }));
    found.responses.push({ tokens: Int32Array.from(token_ids), drafts });
  }
  return [...groups.values()];
}

/** How often the head's first token is right, its second if the first was, and so on. */
export function acceptanceOf(groups: readonly Group[]): number[] {
  const tried: number[] = [];
  const right: number[] = [];
  for (const { tokens, drafts } of groups.flatMap(({ responses }) => responses)) {
    for (const [at, draft] of drafts.entries()) {
      for (const [place, token] of draft.entries()) {
        const isRight = tokens[at + 1 + place] === token;
        tried[place] = (tried[place] ?? 0) + 1;
        right[place] = (right[place] ?? 0) + Number(isRight);
        if (!isRight) break;
      }
    }
  }
  return tried.map((count, place) => (right[place] ?? 0) / count);
}

/**
 * Which was right more often where the two differ, by the place and by what the table says of its token, as the plugin
 * learns it (native/foretoken_vllm/src/foretoken_vllm/evidence.py): judged up to the first wrong token of the draft.
 */
class Evidence {
  readonly #seen = new Map<number, { head: number; table: number }>();

  takesTable({ response, at }: LiveResponse, { path, ofHead, ofTable, own }: Both): boolean {
    if (own === 0 || ofTable.share === 0) return own === 0;
    const { share, node, token } = ofTable;
    const kind = 64 * path.length + (node < 0 ? 32 : 0) + Math.floor(16 * share);
    // As if either were right whatever the other is.
    const seen = this.#seen.getOrInsertComputed(kind, () => ({
      head: PRIOR * own * (1 - share),
      table: PRIOR * share * (1 - own),
    }));
    const takes = seen.table > seen.head;
    const isOn = path.every((one, place) => one.token === response[at + place]);
    if (isOn && token !== ofHead) {
      seen.head += Number(ofHead === response[at + path.length]);
      seen.table += Number(token === response[at + path.length]);
    }
    return takes;
  }
}

/** Of each wave of a group's siblings, all groups together. */
export function count(groups: readonly Group[], schedule: Schedule): Wave[] {
  const { system, tokensMax, siblings, together } = schedule;
  const acceptance = acceptanceOf(groups).slice(0, tokensMax);
  const all = groups.flatMap(({ responses }) => responses);
  const drafts = new Map(all.map((one) => [one.tokens, one.drafts]));
  const evidence = new Evidence();
  const real: HeadOptions["real"] = {
    said: ({ response, at }, place) => drafts.get(response)?.[at - 1]?.[place] ?? -1,
    takesTable: (one, both) => evidence.takesTable(one, both),
  };
  const drafter = new Replica();
  const head = new HeadDrafts(drafter, { system, acceptance, real });
  const waves = Array.from({ length: siblings / together }, () => ({ early: sum(), late: sum() }));
  for (const [number, { prompt, responses }] of groups.entries()) {
    const id = groupId(String(number));
    drafter.register(id, prompt);
    for (const [i, wave] of waves.entries()) {
      const begun = responses.slice(i * together, (i + 1) * together);
      let live = begun.map(({ tokens: response }, j) => {
        const sampleIndex = i * together + j;
        const query = { groupId: id, sampleIndex, tokensMax, probabilityMin: PROBABILITY_MIN };
        const tally = { responses: 1, tokens: 0, ...sum(), returns: false };
        // A request's first token comes with its prompt.
        drafter.update(id, sampleIndex, 0, response.subarray(0, 1));
        return { query: { ...query, tree: false } as const, prompt, response, tally, at: 1 };
      });
      for (;;) {
        live = live.filter(({ at, response }) => at < response.length);
        if (live.length === 0) break;
        const made = head.propose(live);
        for (const [j, one] of live.entries()) {
          const accepted = acceptedOf(made, j, one);
          const part = one.at < EARLY_TOKENS ? wave.early : wave.late;
          part.steps += 1;
          part.drafted += (made.start[j + 1] ?? 0) - (made.start[j] ?? 0);
          part.accepted += accepted;
          const tokens = one.response.subarray(one.at, one.at + accepted + 1);
          drafter.update(id, one.query.sampleIndex, one.at, tokens);
          one.at += tokens.length;
        }
      }
    }
    drafter.drop(id);
  }
  return waves;
}

function sum(parts: readonly Sum[] = []): Sum {
  const total = { steps: 0, drafted: 0, accepted: 0 };
  for (const { steps, drafted, accepted } of parts) {
    total.steps += steps;
    total.drafted += drafted;
    total.accepted += accepted;
  }
  return total;
}

/** A row's name, its schedule, and the part of it that counts. */
const ROWS: readonly (readonly [string, number, number, (waves: readonly Wave[]) => Sum])[] = [
  ["8 together", 8, 8, ([one]) => sum(one && [one.early, one.late])],
  ["8 together, early", 8, 8, ([one]) => sum(one && [one.early])],
  ["8 together, late", 8, 8, ([one]) => sum(one && [one.late])],
  ["16 together", 16, 16, ([one]) => sum(one && [one.early, one.late])],
  ["16 together, early", 16, 16, ([one]) => sum(one && [one.early])],
  ["16 together, late", 16, 16, ([one]) => sum(one && [one.late])],
  ["16, four at a time", 16, 4, (waves) => sum(waves.flatMap((one) => [one.early, one.late]))],
  ["the first four of them", 16, 4, ([one]) => sum(one && [one.early, one.late])],
  ["the last four of them", 16, 4, ([, , , one]) => sum(one && [one.early, one.late])],
];

if (import.meta.main) {
  const { tokens: tokensMax, json, files } = flagsOf(import.meta.path, { tokens: 7 });
  const groups = groupsOf(files.map((path) => readFileSync(path, "utf8")).join("\n"));
  const acceptance = acceptanceOf(groups);
  const rows = ROWS.map(([siblings, size, together, of]) => {
    const cells = HEAD_SYSTEMS.map((system) => {
      const waves = count(groups, { system, tokensMax, siblings: size, together });
      const { steps, drafted, accepted } = of(waves);
      return { tokens: 1 + accepted / steps, drafted: drafted / steps };
    });
    const [alone = 0, table = 0, both = 0] = cells.map(({ tokens }) => tokens);
    return { siblings, cells, gain: both / Math.max(alone, table) };
  });
  const shares = acceptance.map((share) => share.toFixed(3)).join(" ");
  console.log(`${groups.length} groups; the head's acceptance by place: ${shares}`);
  const lines = rows.map(({ siblings, cells, gain }) => [
    siblings,
    ...cells.map(({ tokens, drafted }) => `${tokens.toFixed(2)} (${drafted.toFixed(2)})`),
    gain.toFixed(2),
  ]);
  console.log(textTable(["siblings", ...HEAD_SYSTEMS, "both / better"], lines));
  writeReport(json, { groups: groups.length, acceptance, rows });
}
