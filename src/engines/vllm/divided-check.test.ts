import { expect, test } from "bun:test";
import { checkDivided } from "./divided-check.ts";

test("divided: logprobs of a response in chunks are compared with the whole one's", async () => {
  const found = await checkDivided(
    async ({ length }, tokensMax) => {
      const tokens = Array.from({ length: tokensMax }, (_, i) => length + i);
      return { tokens, top: tokens.map(() => [length > 1 ? -0.5 - 2 ** -20 : -0.5, -1]) };
    },
    [1],
  );
  expect(found).toMatchObject({ at: -1, logprobNats: 2 ** -20 });
});
