// The help of every command, at the widths of terminals.

import { expect, test } from "bun:test";
import type { Command } from "commander";
import { programOf } from "./cli.ts";
import { HELP_WIDTH_MAX, layOutHelp } from "./help.ts";

function helpOf(command: Command, columns: number | undefined): string {
  let text = "";
  layOutHelp(command, () => columns).configureOutput({
    writeOut: (piece) => {
      text += piece;
    },
  });
  command.outputHelp();
  return text;
}

function tooLong(text: string, width: number): string[] {
  return text.split("\n").filter((line) => line.length > width);
}

test("help: every command fits 80 columns, and no more than a maximum on wide terminals", () => {
  const program = programOf(() => {});
  for (const command of [program, ...program.commands]) {
    expect(tooLong(helpOf(command, undefined), 80)).toEqual([]);
    expect(tooLong(helpOf(command, 300), HELP_WIDTH_MAX)).toEqual([]);
  }
});

test("help: no option of a command has two defaults", () => {
  const doubled = programOf(() => {}).commands.flatMap((command) =>
    command.options
      .filter(({ description }) => description.split("(default: ").length > 2)
      .map(({ long }) => `${command.name()} ${long}`),
  );
  expect(doubled).toEqual([]);
});

test("help: the environment's rule is shown by an option of the command itself", () => {
  const others = programOf(() => {}).commands.flatMap((command) => {
    const flag = /in the environment: (--\S+) is/.exec(helpOf(command, 80))?.[1];
    return command.options.some(({ long }) => long === flag) ? [] : [command.name()];
  });
  expect(others).toEqual([]);
});
