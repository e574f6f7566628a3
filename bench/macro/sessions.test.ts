// A small size of the bench, on real embedded engines with portable kernels: what sessions keep changes no token, and
// later turns compute what is new in them.

import { expect, test } from "bun:test";
import { engineMissing } from "../../test/e2e/tool.ts";
import { run } from "./sessions.ts";

const missing = engineMissing();
if (missing !== null) console.warn(`skipped: ${missing}`);

test.skipIf(missing !== null)(
  "sessions: the same texts bit for bit, and prompts of later turns are not computed again",
  async () => {
    const shape = { roots: 1, siblings: 3, turns: 3, tokens: 16 };
    const more = { deterministic: true, staggered: false };
    const without = await run({ ...shape, ...more }, false);
    const within = await run({ ...shape, ...more }, true);
    expect(within.texts).toEqual(without.texts);
    for (const [i, { turn, promptTokens, computedTokens }] of within.rows.entries()) {
      expect(without.rows[i]?.computedTokens).toBeGreaterThanOrEqual(promptTokens);
      if (turn > 1) expect(computedTokens).toBeLessThan(promptTokens * 0.6);
    }
  },
  120_000,
);
