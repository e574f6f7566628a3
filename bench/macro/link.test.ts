// The bench at a small size: every token arrives, and the figures are there.

import { expect, test } from "bun:test";
import { measure } from "./link.ts";

test("bench: a link and JSON frames carry the same tokens, the link in fewer bytes", async () => {
  const { link, json } = await measure({ tokens: 20_000, requests: 8, perStep: 2 });
  expect(link.tokens_per_s).toBeGreaterThan(0);
  expect(json.tokens_per_s).toBeGreaterThan(0);
  expect(link.bytes_per_token).toBeLessThan(json.bytes_per_token);
});
