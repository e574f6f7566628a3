import { expect, test } from "bun:test";
import fc from "fast-check";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { groupId } from "../base/ids.ts";
import { ContextManager, type LengthPrior } from "../context/context.ts";
import { RequestBuffer, type RolloutRequest } from "../request/buffer.ts";
import { drawKey } from "../request/request.ts";
import { loadCore } from "../wasm/load.ts";
import { FewestTokensPolicy } from "./fewest-tokens.ts";

const core = loadCore();

const waitingArbitrary = fc.array(
  fc.record({ tokens: fc.integer({ min: 0, max: 30 }), priority: fc.integer({ min: -2, max: 2 }) }),
  { minLength: 1, maxLength: 20 },
);

/** No worker has KV to spare. */
function fewestFirst(buffer: RequestBuffer, prior?: LengthPrior) {
  const context = new ContextManager(prior);
  const policy = new FewestTokensPolicy({ buffer, core, context });
  return { context, policy };
}

test("fewest tokens: serves by priority, then tokens, then index, whatever is given up meanwhile", () => {
  fc.assert(
    fc.property(waitingArbitrary, fc.nat(19), (waiting, dropped) => {
      const buffer = new RequestBuffer();
      const { context, policy } = fewestFirst(buffer);
      const group = buffer.open(groupId("g"), Int32Array.of(1));
      const sampling = samplingOf({ tokensMax: 100 });
      const requests = waiting.map(({ tokens, priority }, i) => {
        const draw = drawKey(0, "g", i);
        const request = buffer.join(group, { sampling, draw, divisible: true, priority });
        request.response.append(0, new Int32Array(tokens), new Float32Array(tokens));
        context.joined(request);
        policy.add(request);
        return request;
      });
      const gone = requests[dropped];
      if (gone !== undefined) policy.remove(gone);
      const wanted = requests
        .filter((request) => request !== gone)
        .sort(
          (a, b) =>
            a.priority - b.priority || a.response.length - b.response.length || a.index - b.index,
        );
      const served: RolloutRequest[] = [];
      for (let next = policy.peek(); next !== null; next = policy.peek()) {
        served.push(next);
        policy.take(next);
      }
      expect(served).toEqual(wanted);
    }),
  );
});

test("fewest tokens: of equally many, the group whose earlier responses were longest goes first", () => {
  const buffer = new RequestBuffer();
  const priors: Record<string, number | null> = { a: null, b: 5, c: 1 << 20 };
  const { context, policy } = fewestFirst(buffer, ({ group }) => priors[group.groupId] ?? null);
  for (const name of Object.keys(priors)) {
    const wanted = { prompt: Int32Array.of(1), sampling: samplingOf({ tokensMax: 100 }) };
    const { requests } = buffer.add({ groupId: groupId(name), size: 2, ...wanted });
    for (const [i, request] of requests.entries()) {
      request.response.append(0, new Int32Array(1 - i), new Float32Array(1 - i));
      context.joined(request);
      policy.add(request);
    }
  }
  const served: string[] = [];
  for (let next = policy.peek(); next !== null; next = policy.peek()) {
    served.push(`${next.group.groupId}${next.response.length}`);
    policy.take(next);
  }
  expect(served).toEqual(["c0", "b0", "a0", "c1", "b1", "a1"]);
});
