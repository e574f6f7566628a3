// The answer to a field that an object does not have: the object that has it, else the nearest name, else all names.

import { unknownName } from "../../core/base/unknown-name.ts";

/** The parts of a valibot schema that tell which fields an object has. */
interface Shape {
  readonly entries?: Readonly<Record<string, Shape>>;
  /** Schema of the value of an optional field. */
  readonly wrapped?: Shape;
  /** Schema of a list's items. */
  readonly item?: Shape;
  /** Schema that depends on the value. */
  readonly getter?: (input: unknown) => Shape;
}

interface Step {
  readonly key: unknown;
  readonly value: unknown;
}

/** The message about the last key of `path`, which the schema's object does not have. */
export function unknownField(schema: object, path: readonly Step[] = []): string {
  const name = String(path.at(-1)?.key);
  const around: { at: string; shape: Shape }[] = [];
  let shape: Shape = schema;
  let at = "";
  for (const { key, value } of path) {
    around.unshift({ at, shape });
    at = at === "" ? String(key) : `${at}.${String(key)}`;
    shape = within(shape.entries?.[String(key)] ?? shape.item ?? {}, value);
  }
  const [here, ...outer] = around;
  const fields = here?.shape.entries ?? {};
  const inner = Object.entries(fields).flatMap(([field, entry]) => {
    const value = within(entry);
    if (has(value, name)) return field;
    return has(within(value.item ?? {}), name) ? `each of ${field}` : [];
  });
  const home = inner[0] ?? outer.find((one) => has(one.shape, name))?.at;
  if (home === undefined) return unknownName(name, Object.keys(fields));
  return `is not known here; it belongs in ${home || "the body"}`;
}

function has({ entries = {} }: Shape, name: string): boolean {
  return Object.hasOwn(entries, name);
}

function within({ wrapped, getter, ...shape }: Shape, input?: unknown): Shape {
  if (wrapped !== undefined) return within(wrapped, input);
  return getter === undefined ? shape : within(getter(input), input);
}
