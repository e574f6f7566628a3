// What is known of coming tokens, against a search of the plain texts.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { CopiedText, FollowedTokens } from "./known-text.ts";

const text = fc
  .array(fc.integer({ min: 0, max: 2 }), { maxLength: 12 })
  .map((ids) => Int32Array.from(ids));

/** How many of `next` follow one another, and `last`, somewhere in a text. */
function found(texts: readonly (readonly number[])[], last: number, next: Int32Array): number {
  for (let count = next.length; count > 0; count -= 1) {
    const wanted = `,${[last, ...next.subarray(0, count)].join()},`;
    if (texts.some((known) => `,${known.join()},`.includes(wanted))) return count;
  }
  return 0;
}

test("known text: copies are found wherever texts that grow in turn have them", () => {
  const pieces = fc.array(fc.tuple(fc.integer({ min: 0, max: 2 }), text), { maxLength: 8 });
  fc.assert(
    fc.property(text, text, pieces, text, (prompt, past, grown, next) => {
      const copied = new CopiedText(prompt, [past]);
      const followed = new FollowedTokens();
      followed.append(undefined, past);
      const ends = [copied.begin, copied.begin, copied.begin];
      const texts = [[...prompt], [...prompt], [...prompt], [...prompt, ...past]];
      for (const [i, tokens] of grown) {
        ends[i] = copied.append(ends[i] ?? copied.begin, tokens);
        texts[i]?.push(...tokens);
        for (const last of [0, 1, 2]) {
          expect(copied.reach(last, next)).toBe(found(texts, last, next));
        }
      }
      const pairs = next.findIndex(
        (token, i) => found([[...past]], next[i - 1] ?? 0, Int32Array.of(token)) === 0,
      );
      expect(followed.reach(0, next)).toBe(pairs < 0 ? next.length : pairs);
    }),
  );
});
