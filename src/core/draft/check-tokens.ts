// The check of token ids that come into the drafting layer: core and wire hold them in 32 bits, and ids are
// never negative.

import { InvalidFieldError } from "../base/errors.ts";

/** Throws AppError `invalid_field` that names `field` and the index in it. */
export function checkTokens(tokens: Int32Array, place: { where: string; field: string }): void {
  for (let i = 0; i < tokens.length; i += 1) {
    const token = tokens[i] ?? 0;
    if (token >= 0) continue;
    const { where, field } = place;
    throw new InvalidFieldError({
      where,
      field: `${field}[${i}]`,
      problem: `is ${token}, below 0`,
    });
  }
}
