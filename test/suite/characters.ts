// Texts for generators: characters that escapes, encodings and joins are wrong about, and any other.

import fc from "fast-check";

const CHARACTERS = [
  ..."aZ09 _-.:,'\"\\/%{}[]\0\n\r\t\x7f\x80é\u0301\u00a0\u200d\u2028\u202e\ufeff\uffff日𝄞👩🇩",
];
const CODE_POINTS = 0x110000;

/** Well-formed. fast-check's own Unicode units take a second to prepare in each process. */
export function charactersOf(lengths: {
  minLength?: number;
  maxLength: number;
}): fc.Arbitrary<string> {
  const one = fc
    .nat({ max: 2 * CODE_POINTS - 1 })
    .map((number) =>
      number < CODE_POINTS
        ? (CHARACTERS[number % CHARACTERS.length] ?? "")
        : String.fromCodePoint(number - CODE_POINTS).toWellFormed(),
    );
  return fc.array(one, lengths).map((list) => list.join(""));
}
