// Messages of engines on /v1/draft, as fast-check draws them, all but the first of a connection.

import fc from "fast-check";
import type { GroupId, WeightEpoch } from "../../src/core/base/ids.ts";
import { SAMPLES_MAX, TTL_MS_MAX } from "../../src/core/draft/service/limits.ts";
import type { ClientMessage } from "../../src/core/draft/service/message.ts";
import { kind } from "./arbitraries.ts";

const uint32 = fc.integer({ min: 0, max: 0xffffffff });
const total = fc.nat({ max: Number.MAX_SAFE_INTEGER });

export function draftMessages(of: {
  epoch: fc.Arbitrary<WeightEpoch>;
  groupId: fc.Arbitrary<GroupId>;
  sampleIndex: fc.Arbitrary<number>;
  /** Tokens that a side has of a response. */
  have: fc.Arbitrary<number>;
  /** `min`: so many at least. */
  tokens: (min: number) => fc.Arbitrary<Int32Array>;
}): fc.Arbitrary<ClientMessage> {
  const { epoch, groupId, sampleIndex, have, tokens } = of;
  const delta = fc.record({ sampleIndex, offset: have, tokens: tokens(1) });
  const deltas = fc.array(delta, { maxLength: 4 });
  return fc.oneof(
    fc.record({
      kind: kind("register_group"),
      epoch,
      groupId,
      ttlMs: fc.integer({ min: 1, max: TTL_MS_MAX }),
      prompt: tokens(0),
    }),
    fc.record({
      kind: kind("update"),
      epoch,
      groups: fc.array(fc.record({ groupId, deltas }), { maxLength: 4 }),
    }),
    fc.record({
      kind: kind("fetch"),
      epoch,
      states: fc.array(fc.record({ groupId, have: fc.array(have, { maxLength: 20 }) }), {
        maxLength: 4,
      }),
    }),
    fc.record({ kind: kind("fetch_past"), epoch, groupId, have: fc.nat(SAMPLES_MAX) }),
    fc.record({
      kind: kind("telemetry"),
      epoch,
      running: uint32,
      waiting: fc.option(fc.nat({ max: 0x7fffffff })),
      kvUsage: fc.option(fc.float({ min: 0, max: 1, noNaN: true }).map(Math.abs)),
      isLossless: fc.boolean(),
      steps: total,
      stepUs: total,
      proposeUs: total,
      drafted: total,
      accepted: total,
      traced: total,
      tracedElsewhere: total,
      faults: total,
      stepError: total,
      repeatsSeeds: fc.boolean(),
    }),
  );
}
