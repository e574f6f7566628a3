// Assertions state what must hold if the code is right. They stay on in production and are never
// caught: a failed one is a bug, not a condition.

export class AssertionError extends Error {
  override readonly name = "AssertionError";
}

export function assert(condition: unknown, message: string): asserts condition {
  if (!condition) throw new AssertionError(message);
}

/** Returns `value`, which the caller knows to be neither null nor undefined. */
export function present<T>(value: T | null | undefined, message: string): T {
  if (value === null || value === undefined) throw new AssertionError(message);
  return value;
}

/** Ends a switch over a union, so that the compiler proves that it has a case for every kind. */
export function unreachable(value: never): never {
  throw new AssertionError(`unreachable: ${JSON.stringify(value)}`);
}
