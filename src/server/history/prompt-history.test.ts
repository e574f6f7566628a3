// The sidecar's history through its own rollout: what a prompt's responses of one epoch are to the next.

import { expect, test } from "bun:test";
import { Bed, DEAF, specFor } from "../../../test/suite/sidecar-bed.ts";
import { weightEpoch } from "../../core/base/ids.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";
import { PromptHistory } from "./prompt-history.ts";

const MIB = 2 ** 20;
const LENGTHS = [20, 35, 10];

function world(options: { promptsMax?: number } = {}) {
  const bed = new Bed({ workers: 2, lengthOf: ({ sampleIndex }) => LENGTHS[sampleIndex] ?? 5 });
  const history = new PromptHistory({ limitBytes: MIB, model: "m", ...options });
  const { sidecar } = bed;
  sidecar.observe({
    finished: (request) => history.finished(request),
    advanced: () => history.advance(),
  });
  let epoch = 0;
  return {
    history,
    /** Responses of one epoch, finished; the weights advance afterwards. */
    iteration: async (prompt: number[], n: number, adapter?: string): Promise<RolloutRequest[]> => {
      const spec = specFor(prompt, n);
      const sampling = { ...spec.sampling, ...(adapter !== undefined && { adapter }) };
      const { requests } = sidecar.generate({ ...spec, sampling }, DEAF);
      await bed.finish();
      epoch += 1;
      sidecar.advance(weightEpoch(epoch));
      return [...requests];
    },
    begin: (prompt: number[], adapter?: string): RolloutRequest => {
      const spec = specFor(prompt, 1);
      const sampling = { ...spec.sampling, ...(adapter !== undefined && { adapter }) };
      const [request] = sidecar.generate({ ...spec, sampling }, DEAF).requests;
      if (request === undefined) throw new Error("there is a request");
      return request;
    },
  };
}

/** Shortest first: in the order in which they finished. */
const pastOf = (history: PromptHistory, request: RolloutRequest) =>
  history.past(request.group).map((tokens) => [...tokens]);
const textsOf = (requests: readonly RolloutRequest[]) =>
  requests.map(({ response }) => [...response.tokens()]).toSorted((a, b) => a.length - b.length);

test("history: the responses of the epoch before, and the longest as a prior", async () => {
  const { history, iteration, begin } = world();
  const made = await iteration([1, 2, 3], 3);
  const next = begin([1, 2, 3]);
  expect(pastOf(history, next)).toEqual(textsOf(made));
  expect(history.prior(next)).toBe(35);
  const other = begin([1, 2]);
  expect(pastOf(history, other)).toEqual([]);
  expect(history.prior(other)).toBeNull();
});

test("history: adapters have their own", async () => {
  const { history, iteration, begin } = world();
  await iteration([1, 2, 3], 2, "one");
  for (const adapter of [undefined, "two", "one"]) {
    const request = begin([1, 2, 3], adapter);
    const count = adapter === "one" ? 2 : 0;
    expect(history.past(request.group)).toHaveLength(count);
    expect(history.prior(request)).toBe(count === 0 ? null : 35);
  }
});

test("history: the prior is of the latest epoch before, and the prompt used longest ago goes first", async () => {
  const { history, iteration, begin } = world({ promptsMax: 2 });
  await iteration([1], 3);
  await iteration([1], 1);
  await iteration([2], 2);
  expect(history.prior(begin([1]))).toBe(20);
  await iteration([3], 1);
  expect([1, 2, 3].map((prompt) => history.prior(begin([prompt])))).toEqual([20, null, 20]);
});
