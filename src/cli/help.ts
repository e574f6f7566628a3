// How `--help` of every command is laid out: one width for all, and descriptions in one column. A long flag stands on a
// line of its own, so that its description has room to wrap.

import { type Command, Help, type Option } from "commander";

/** Maximum of a line; longer ones are hard to read on wide terminals. */
export const HELP_WIDTH_MAX = 100;
const HELP_WIDTH_DEFAULT = 80;
/** Column of flags; a longer flag has its description on the next line. */
const TERM_WIDTH_MAX = 27;
/** A narrower column is not wrapped. */
const WRAP_WIDTH_MIN = 20;
const INDENT = 2;
const GAP = 2;

/** Applies the layout to `command`; `columns` is the terminal's width, undefined where there is none. */
export function layOutHelp(command: Command, columns: () => number | undefined): Command {
  return command
    .configureOutput({
      getOutHelpWidth: () => widthOf(columns()),
      getErrHelpWidth: () => widthOf(columns()),
    })
    .configureHelp({ optionDescription, padWidth, formatItem, minWidthToWrap: WRAP_WIDTH_MIN });
}

function widthOf(columns: number | undefined): number {
  return Math.min(HELP_WIDTH_MAX, columns ?? HELP_WIDTH_DEFAULT);
}

/** Descriptions name their defaults; the environment's names follow a rule, which the help explains once. */
function optionDescription(option: Option): string {
  return option.description;
}

function padWidth(command: Command, helper: Help): number {
  const { longestOptionTermLength, longestSubcommandTermLength, longestArgumentTermLength } =
    Help.prototype;
  const longest = Math.max(
    longestOptionTermLength.call(helper, command, helper),
    longestSubcommandTermLength.call(helper, command, helper),
    longestArgumentTermLength.call(helper, command, helper),
  );
  return Math.min(TERM_WIDTH_MAX, longest);
}

function formatItem(term: string, termWidth: number, description: string, helper: Help): string {
  const left = " ".repeat(INDENT);
  if (description === "") return left + term;
  const column = " ".repeat(INDENT + termWidth + GAP);
  const width = (helper.helpWidth ?? HELP_WIDTH_DEFAULT) - column.length;
  const text = helper.boxWrap(description, width).replaceAll("\n", `\n${column}`);
  if (term.length > termWidth) return `${left}${term}\n${column}${text}`;
  return `${left}${term.padEnd(termWidth + GAP)}${text}`;
}
