// Targets with the faults that the fuzzer looks for, for its own test.

import fc from "fast-check";
import { parser } from "./target.ts";

const numbers = { draw: fc.nat(), vary: (base: number) => base };
let taken = 0;

/** Counts its inputs, since what is drawn is any number. */
const nth = (wanted: number, act: () => void) => () => {
  taken += 1;
  if (taken === wanted) act();
};

export const targets = [
  parser("sound", numbers, () => {}),
  parser("throws", numbers, (value) => {
    throw new TypeError(`no number like ${value}`);
  }),
  parser(
    "crashes",
    numbers,
    nth(5, () => process.kill(process.pid, "SIGSEGV")),
  ),
  parser(
    "loops",
    numbers,
    nth(5, () => {
      for (;;);
    }),
  ),
  parser("waits", numbers, async () => {
    taken += 1;
    if (taken === 5) await new Promise(() => setInterval(() => {}, 1000));
  }),
];
