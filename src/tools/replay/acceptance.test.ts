import { expect, test } from "bun:test";
import type { Drafts } from "../../core/draft/drafter.ts";
import { acceptedOf } from "./acceptance.ts";

type Node = readonly [token: number, parent: number, probability: number];

function draftsOf(...queries: readonly (readonly Node[])[]): Drafts {
  const nodes = queries.flat();
  let end = 0;
  const ends = queries.map((query) => {
    end += query.length;
    return end;
  });
  return {
    start: Int32Array.from([0, ...ends]),
    tokens: Int32Array.from(nodes.map(([token]) => token)),
    parents: Int32Array.from(nodes.map(([, parent]) => parent)),
    probabilities: Float32Array.from(nodes.map(([, , probability]) => probability)),
  };
}

const RESPONSE = Int32Array.of(5, 6, 7, 8, 9);

function judge(drafts: Drafts, at: number, query = 0) {
  const judged: [probability: number, isAccepted: boolean][] = [];
  const accepted = acceptedOf(drafts, query, { response: RESPONSE, at }, (...token) =>
    judged.push(token),
  );
  return { accepted, judged };
}

const PATH: Node[] = [
  [6, -1, 1],
  [7, 0, 1],
  [1, 1, 1],
  [9, 2, 1],
];
const OVER: Node[] = [
  [9, -1, 1],
  [0, 0, 1],
];
// Drawn: 6 -> (8, 7 -> (8 -> 1, 9)); 5. The response goes on 6 7 8 9.
const TREE: Node[] = [
  [5, -1, 0.1],
  [6, -1, 0.8],
  [8, 1, 0.2],
  [7, 1, 0.6],
  [9, 3, 0.1],
  [8, 3, 0.5],
  [1, 5, 0.4],
];
const ORPHAN: Node[] = [
  [1, -1, 1],
  [7, 0, 1],
];

test.each([
  ["a path up to its first wrong token", PATH, 1, 2],
  ["nothing of a path whose first token is wrong", PATH, 0, 0],
  ["up to the response's end", OVER, 4, 1],
  ["nothing behind the response's end", OVER, 5, 0],
  ["nothing of an empty draft", [], 0, 0],
  ["the longest branch that the response follows", TREE, 1, 3],
  ["no right token under a wrong parent", ORPHAN, 1, 0],
])("acceptance: of a draft is accepted: %s", (_name, draft, at, accepted) => {
  expect(judge(draftsOf(draft), at).accepted).toBe(accepted);
});

test("acceptance: a query reads its own range of the arrays, parents counted within it", () => {
  expect(judge(draftsOf([[1, -1, 1]], PATH), 1, 1).accepted).toBe(2);
});

test("acceptance: every drafted token is judged, accepted or not", () => {
  const { judged } = judge(draftsOf(TREE), 1);
  expect(judged).toHaveLength(7);
  const accepted = judged.filter(([, isAccepted]) => isAccepted).map(([chance]) => chance);
  expect(accepted.map((chance) => chance.toFixed(1))).toEqual(["0.8", "0.6", "0.5"]);
});
