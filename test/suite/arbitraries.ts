import fc from "fast-check";

export const kind = <K extends string>(value: K): fc.Arbitrary<K> => fc.constant(value);

/** A record among others in `fc.oneof`, which is drawn as often as its weight says. */
export const weighted = <T>(weight: number, fields: { [K in keyof T]: fc.Arbitrary<T[K]> }) => ({
  weight,
  arbitrary: fc.record(fields),
});
