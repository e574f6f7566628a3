// The bench at a small size: clients get every token, and the figures are there.

import { expect, test } from "bun:test";
import { measure } from "./serve.ts";

const shape = { requests: 64, seconds: 0.2, stepTokens: 4, draft: "grouped", warmUpS: 0 } as const;

test.each(["sse", "proxy"] as const)(
  "bench: %s streams carry every token",
  async (mode) => {
    const row = await measure(mode, shape);
    expect(row.received_share).toBe(1);
    expect(row.tokens_per_cpu_s).toBeGreaterThan(0);
    expect(row.bytes_per_token).toBeGreaterThan(4);
    expect(row.latencies.map(({ load }) => load)).toEqual([0.25, 0.5, null]);
    for (const { p50_ms, p99_ms } of row.latencies) expect(p99_ms).toBeGreaterThanOrEqual(p50_ms);
  },
  180_000,
);
