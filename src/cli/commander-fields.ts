// Puts fields of the one options table on a commander command, and reads them back as typed settings.

import { type Command, InvalidArgumentError, Option } from "commander";
import { AppError } from "../base/errors.ts";
import { FIELDS, type Field, type FieldName, parseField, type Settings } from "../config/fields.ts";

/** `defaults` replace those of the table where a command has its own. */
export function addFields(
  command: Command,
  names: readonly FieldName[],
  defaults: { readonly [N in FieldName]?: number | string } = {},
): Command {
  for (const name of names) {
    const option = optionOf(FIELDS[name]);
    const own = defaults[name];
    command.addOption(own === undefined ? option : option.default(own));
  }
  return command;
}

/** The settings of `names` after parsing; absent fields without a default are null. */
export function readFields<N extends FieldName>(
  command: Command,
  names: readonly N[],
): Settings<N> {
  const options = command.opts() as Record<string, unknown>;
  const settings: Record<string, unknown> = {};
  for (const name of names) {
    const key = optionOf(FIELDS[name]).attributeName();
    settings[name] = options[key] ?? (FIELDS[name].kind === "switch" ? false : null);
  }
  return settings as Settings<N>;
}

function optionOf(field: Field): Option {
  if (field.kind === "switch") return new Option(field.flag, field.help);
  const metavar = field.kind === "choice" ? field.choices.join("|") : field.metavar;
  const option = new Option(`${field.flag} <${metavar}>`, field.help);
  if (field.default !== null) option.default(field.default);
  return option.argParser((text) => {
    try {
      return parseField(field, text);
    } catch (error) {
      if (error instanceof AppError) throw new InvalidArgumentError(error.message);
      throw error;
    }
  });
}
