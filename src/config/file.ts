// The content of a configuration file as settings: every key is known, every value fits its field.

import { AppError, errorText } from "../core/base/errors.ts";
import { unknownName } from "../core/base/unknown-name.ts";
import { FIELDS, type FieldName, fileKey, parseField } from "./fields.ts";

/**
 * Values by field. `where` names the file in messages.
 * @throws AppError invalid_config: an unknown key, or a value that its field refuses.
 */
export function settingsIn(
  content: unknown,
  options: { where: string; names: readonly FieldName[] },
): Map<FieldName, unknown> {
  const { where, names } = options;
  if (typeof content !== "object" || content === null || Array.isArray(content)) {
    throw new AppError("invalid_config", `${where}: is not a table of settings`);
  }
  const byKey = new Map(names.map((name) => [fileKey(FIELDS[name]), name]));
  const settings = new Map<FieldName, unknown>();
  for (const [key, value] of Object.entries(content)) {
    const name = byKey.get(key);
    if (name === undefined) {
      const problem = unknownName(key, [...byKey.keys()]);
      throw new AppError("invalid_config", `${where}: ${key} ${problem}`);
    }
    settings.set(name, checked(name, value, `${where}: ${key}`));
  }
  return settings;
}

function checked(name: FieldName, value: unknown, where: string): unknown {
  const field = FIELDS[name];
  const refused = (what: string) =>
    new AppError("invalid_config", `${where} is ${JSON.stringify(value)}; it is ${what}`);
  if (field.kind === "switch") {
    if (typeof value === "boolean") return value;
    throw refused("true or false");
  }
  if (field.kind === "list") {
    if (Array.isArray(value) && value.every((one) => typeof one === "string")) return value;
    throw refused("a list of strings");
  }
  if (typeof value !== "string" && typeof value !== "number") throw refused("one value");
  try {
    return parseField(field, String(value));
  } catch (cause) {
    throw new AppError("invalid_config", `${where}: ${errorText(cause)}`, { cause });
  }
}
