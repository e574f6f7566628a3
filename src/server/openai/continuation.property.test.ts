// Whatever an agent sends back of its session, and however that is tokenized again, the prompt has the recorded tokens of
// the longest turn that the chat begins with, and its text is the chat's.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { continued } from "./continuation.ts";

/** Two tokens for each letter: a text has many tokenisations, of which the encoder makes the even one. */
const letterOf = (token: number) => String.fromCharCode(97 + (token >> 1));
const decode = async (tokens: Int32Array) => [...tokens].map(letterOf).join("");
const encode = async (text: string) =>
  Int32Array.from(text, (letter) => 2 * (letter.charCodeAt(0) - 97));

const piece = fc.array(fc.integer({ min: 0, max: 5 }), { minLength: 1, maxLength: 4 });
const sequence = fc.array(piece, { minLength: 1, maxLength: 6 }).map((pieces) => {
  const ends: Int32Array[] = [];
  for (const news of pieces) ends.push(Int32Array.from([...(ends.at(-1) ?? []), ...news]));
  return ends;
});

test("continuation: the recorded tokens of the longest turn that the chat begins with, then the rest", async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(sequence, { maxLength: 3 }),
      fc.nat(),
      piece,
      async (sequences, chosen, news) => {
        const all = sequences.flat();
        const before = all[chosen % Math.max(1, all.length)] ?? new Int32Array(0);
        const text = (await decode(before)) + (await decode(Int32Array.from(news)));
        const prompt = await encode(text);
        const chat = { prompt, text: async () => text, decode, encode };
        const ends = sequences.map((one) => one.map((tokens) => () => tokens));
        const whole = (await continued(chat, ends)) ?? prompt;
        expect(await decode(whole)).toBe(text);
        const texts = await Promise.all(all.map(decode));
        const longest = Math.max(
          0,
          ...texts.filter((one) => text.startsWith(one)).map(({ length }) => length),
        );
        const recorded = all.filter(
          (tokens, i) => text.startsWith(texts[i] ?? "") && tokens.length === longest,
        );
        const isRecorded = recorded.some((tokens) =>
          tokens.every((token, i) => token === whole[i]),
        );
        expect([longest, isRecorded || longest === 0]).toEqual([longest, true]);
        expect([...whole.subarray(longest)]).toEqual([...prompt.subarray(longest)]);
      },
    ),
    { numRuns: 500 },
  );
});
