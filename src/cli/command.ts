// What a command is: what it is called and takes, and the one function that it calls. Its options are fields of the one
// options table, read back as typed settings: from flags first, then the environment, then a configuration file, then the
// defaults.

import { readFileSync } from "node:fs";
import { Command, InvalidArgumentError, Option } from "commander";
import {
  defaultText,
  envName,
  FIELDS,
  type Field,
  type FieldName,
  parseField,
  type Settings,
} from "../config/fields.ts";
import { settingsIn } from "../config/file.ts";
import { AppError, fileProblem } from "../core/base/errors.ts";

interface CommandSpec<N extends FieldName> {
  readonly name: string;
  readonly description: string;
  /** What it takes besides options, and what that is. */
  readonly takes?: readonly [argument: string, description: string];
  /** Text below the options. */
  readonly help: string;
  readonly fields: readonly N[];
  /** Defaults of its own, in place of the table's. */
  readonly defaults?: { readonly [F in FieldName]?: number | string };
  /** Options that are no fields. */
  readonly options?: readonly Option[];
  /** Returns the exit status. */
  readonly run: (
    settings: Settings<N>,
    taken: readonly string[],
    command: Command,
  ) => Promise<number>;
}

export function commandOf<const N extends FieldName>(spec: CommandSpec<N>) {
  const { name, description, takes, help, fields, defaults = {}, options = [], run } = spec;
  return (setStatus: (status: number) => void): Command => {
    const command = new Command(name).description(description).addHelpText("after", help);
    if (takes !== undefined) command.argument(...takes);
    for (const option of options) command.addOption(option);
    for (const name of fields) {
      const own = defaults[name];
      const option = optionOf(FIELDS[name], own);
      command.addOption(own === undefined ? option : option.default(own));
    }
    const [first] = fields
      .map((name): Field => FIELDS[name])
      .filter((one) => one.kind !== "switch");
    if (first !== undefined) {
      const rule = `${first.flag} is ${envName(first)}; flags override it.`;
      command.addHelpText("after", `\nOptions can be set in the environment: ${rule}`);
    }
    return command.action(() =>
      run(readFields(command, fields), command.args, command).then(setStatus),
    );
  };
}

/**
 * The settings of `names` after parsing; absent fields without a default are null.
 * @throws AppError invalid_config: the configuration file is invalid.
 */
function readFields<N extends FieldName>(command: Command, names: readonly N[]): Settings<N> {
  const options = command.opts() as Record<string, unknown>;
  const filed = readConfig(options.config, names);
  const settings = names.map((name) => {
    const isFiled = sourceOf(command, name) === null && filed.has(name);
    return [name, isFiled ? filed.get(name) : (options[keyOf(name)] ?? FIELDS[name].default)];
  });
  return Object.fromEntries(settings) as Settings<N>;
}

/** The fields of `names` that a flag or the configuration file sets, and those that the environment sets. */
export function givenFields<N extends FieldName>(
  command: Command,
  names: readonly N[],
): { readonly explicit: readonly N[]; readonly inherited: readonly N[] } {
  const filed = readConfig(command.opts().config, Object.keys(FIELDS) as FieldName[]);
  const inherited = names.filter((name) => sourceOf(command, name) === "env");
  const isSet = (name: N) => sourceOf(command, name) === "cli" || filed.has(name);
  return { explicit: names.filter((name) => isSet(name) && !inherited.includes(name)), inherited };
}

/** Throws AppError usage if one of `names` was set explicitly; `reason` says why it has no effect. */
export function refuseGiven(command: Command, names: readonly FieldName[], reason: string): void {
  const [first] = givenFields(command, names).explicit;
  if (first === undefined) return;
  throw new AppError("usage", `${FIELDS[first].flag} has no effect ${reason}`);
}

const keyOf = (name: FieldName) => optionOf(FIELDS[name]).attributeName();

/** Where a setting comes from: "cli" or "env"; null: the configuration file, or a default. */
function sourceOf(command: Command, name: FieldName): string | null {
  const source = command.getOptionValueSource(keyOf(name)) ?? "default";
  return source === "default" ? null : source;
}

function readConfig(path: unknown, names: readonly FieldName[]): Map<FieldName, unknown> {
  if (typeof path !== "string") return new Map();
  let content: unknown;
  try {
    const text = readFileSync(path, "utf8");
    content = path.endsWith(".json") ? JSON.parse(text) : Bun.TOML.parse(text);
  } catch (cause) {
    throw new AppError("invalid_config", `--config ${path}: ${fileProblem(cause)}`, { cause });
  }
  return settingsIn(content, { where: path, names });
}

function optionOf(field: Field, own?: number | string): Option {
  if (field.kind === "switch") return new Option(field.flag, field.help).env(envName(field));
  const byDefault = defaultText(field, own);
  const help = byDefault === null ? field.help : `${field.help} (default: ${byDefault})`;
  const option = new Option(`${field.flag} <${field.metavar}>`, help).env(envName(field));
  if (field.default !== null) option.default(field.default);
  if (field.kind !== "list") return option.argParser((text) => parse(field, text));
  // A value from the environment holds all of them; a flag may hold one, and come again.
  return option.argParser((text, before: readonly string[]) => {
    const all = [...before, ...text.split(",").map((one) => String(parse(field, one.trim())))];
    const twice = all.find((one, i) => all.indexOf(one) < i);
    if (field.choices.length === 0 || twice === undefined) return all;
    throw new InvalidArgumentError(`${field.flag} has ${twice} twice.`);
  });
}

function parse(field: Field, text: string): string | number {
  try {
    return parseField(field, text);
  } catch (error) {
    if (error instanceof AppError) throw new InvalidArgumentError(error.message);
    throw error;
  }
}
