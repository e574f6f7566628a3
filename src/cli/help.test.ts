import { expect, test } from "bun:test";
import { programOf } from "./cli.ts";

const { commands } = await programOf(() => {});

test("help: no option of a command has two defaults", () => {
  const doubled = commands.flatMap((command) =>
    command.options
      .filter(({ description }) => description.split("(default: ").length > 2)
      .map(({ long }) => `${command.name()} ${long}`),
  );
  expect(doubled).toEqual([]);
});

test("help: the environment's rule is shown by an option of the command, which loads alone; serve's fits a screen", async () => {
  for (const command of commands) {
    const [own, ...others] = (await programOf(() => {}, command.name())).commands;
    expect([own?.name(), others]).toEqual([command.name(), []]);
    let help = "";
    const writeOut = (text: string) => (help += text);
    command.configureOutput({ writeOut, getOutHelpWidth: () => 80 }).outputHelp();
    // A screen.
    if (command.name() === "serve") expect(help.trim().split("\n").length).toBeLessThanOrEqual(60);
    const flag = /in the environment: (--\S+) is/.exec(help)?.[1];
    expect(command.options.map(({ long }) => long)).toContain(flag);
  }
});
