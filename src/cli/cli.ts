// The command-line tool: its commands, and the one place where an error becomes an exit status.

import { Command, CommanderError } from "commander";
import packageJson from "../../package.json" with { type: "json" };
import { removedFlag, removedVariable } from "../config/removed.ts";
import { AppError } from "../core/base/errors.ts";
import { doctorCommand } from "./doctor-command.ts";
import { draftServerCommand } from "./draft-server-command.ts";
import { layOutHelp } from "./help.ts";
import { EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE } from "./output.ts";
import { replayCommand } from "./replay-command.ts";
import { rolloutCommand } from "./rollout-command.ts";
import { serveCommand } from "./serve-command.ts";
import { simulateCommand } from "./simulate-command.ts";
import { statusCommand } from "./status-command.ts";
import { traceCommand } from "./trace-command.ts";
import { upCommand } from "./up-command.ts";
import { verifyCommand } from "./verify-command.ts";
import { workerCommand } from "./worker-command.ts";

/** Runs the tool; returns the exit status. Errors are printed on stderr. */
export async function main(args: readonly string[]): Promise<number> {
  let status = 0;
  const program = programOf((value) => {
    status = value;
  });
  try {
    refuseRemoved(program, args);
    await program.parseAsync(args, { from: "user" });
    return status;
  } catch (error) {
    return statusOf(error);
  }
}

/** The tool with all of its commands; each sets the exit status. */
export function programOf(setStatus: (status: number) => void): Command {
  const columns = () => (process.stdout.isTTY ? process.stdout.columns : undefined);
  const program = new Command("foretoken")
    .description("A proxy between an RL trainer and its vLLM servers that shortens the rollout.")
    .version(packageJson.version)
    .exitOverride()
    .showHelpAfterError("(foretoken COMMAND --help lists the options)");
  const commands = [
    rolloutCommand,
    serveCommand,
    upCommand,
    statusCommand,
    doctorCommand,
    verifyCommand,
    replayCommand,
    simulateCommand,
    traceCommand,
    draftServerCommand,
    workerCommand,
  ];
  for (const command of commands) {
    program.addCommand(layOutHelp(command(setStatus).exitOverride(), columns));
  }
  return layOutHelp(program, columns);
}

/** @throws AppError usage: an option of an earlier release is given, as a flag or in the environment. */
function refuseRemoved(program: Command, args: readonly string[]): void {
  const [name, ...rest] = args;
  const known = (commands: readonly Command[], flag: string) =>
    commands.some(({ options }) => options.some(({ long }) => long === flag));
  const command = program.commands.filter((one) => one.name() === name);
  const end = rest.indexOf("--");
  for (const arg of end === -1 ? rest : rest.slice(0, end)) {
    const [flag = ""] = arg.split("=");
    const problem = known(command, flag) ? null : removedFlag(flag);
    if (problem !== null) throw new AppError("usage", problem);
  }
  const problem = removedVariable(process.env, (flag) => known(program.commands, flag));
  if (problem !== null) throw new AppError("usage", problem);
}

function statusOf(error: unknown): number {
  // commander has printed its message already; --help and --version end here too, with status 0.
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : EXIT_USAGE;
  if (!(error instanceof AppError)) throw error;
  console.error(`foretoken: ${error.message} [${error.code}]`);
  switch (error.code) {
    case "usage":
    case "invalid_config":
    case "invalid_json":
    case "invalid_field":
    case "model_unreadable":
    case "context_length_exceeded":
    case "kv_budget_too_small":
      return EXIT_USAGE;
    case "interrupted":
      return EXIT_INTERRUPTED;
    default:
      return EXIT_FAILED;
  }
}
