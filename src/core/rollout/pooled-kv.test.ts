// KV belongs to the weights that it was computed with: a worker with others never loads it.

import { expect, test } from "bun:test";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { EmbeddedKvPool } from "../../host/embedded-pool.ts";
import { present } from "../base/assert.ts";
import { groupId, weightEpoch, weightsId } from "../base/ids.ts";
import { RequestBuffer } from "../request/buffer.ts";
import { PooledKv } from "./pooled-kv.ts";

const F16 = weightsId("f16-1");
const Q8 = weightsId("q8_0-2");

test("PooledKv: siblings of one text share a blob under the same weights, and no other", () => {
  const pool = new EmbeddedKvPool({ memoryBytesMax: 1000, disk: null });
  const pooled = new PooledKv(pool, () => {});
  const { requests } = new RequestBuffer().add({
    groupId: groupId("g"),
    prompt: Int32Array.of(1, 2, 3),
    size: 3,
    sampling: samplingOf({ tokensMax: 8 }),
  });
  const [first, sibling, other] = requests.map((request) => present(request, "three requests"));
  const kv = { tokens: 3, bytes: new ArrayBuffer(10) };
  const epoch = weightEpoch(0);
  for (const [request, weights] of [
    [first, F16],
    [sibling, F16],
    [other, Q8],
  ] as const) {
    pooled.store(present(request, "a request"), kv, { epoch, weights });
  }
  expect(pool.stats().memoryBytes).toBe(20);
  const id = present(first, "a request").spec.requestId;
  expect(pooled.blob(id, F16)?.tokens).toBe(3);
  expect(pooled.blob(id, Q8)).toBe(null);
  expect(pooled.blob(id, null)).toBe(null);
});
