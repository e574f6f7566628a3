// The command-line tool: its commands, and the one place where an error becomes an exit status.

import { Command, CommanderError, type Option } from "commander";
import packageJson from "../../package.json" with { type: "json" };
import { checkEnvironment } from "../config/environment.ts";
import { AppError } from "../core/base/errors.ts";
import { doctorCommand } from "./doctor-command.ts";
import { draftServerCommand } from "./draft-server-command.ts";
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
    await program.parseAsync(args, { from: "user" });
    return status;
  } catch (error) {
    return statusOf(error);
  }
}

/** The tool with all of its commands; each sets the exit status. */
export function programOf(setStatus: (status: number) => void): Command {
  const program = new Command("foretoken")
    .description("A proxy between an RL trainer and its vLLM servers that shortens the rollout.")
    .version(packageJson.version)
    .exitOverride()
    .showHelpAfterError("(foretoken COMMAND --help lists the options)")
    .hook("preAction", () => checkEnvironment(Object.keys(process.env)));
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
    program.addCommand(laidOut(command(setStatus).exitOverride()));
  }
  return laidOut(program);
}

/** Descriptions name their defaults; how the environment's variables are called, the help says once. */
function laidOut(command: Command): Command {
  const optionDescription = ({ description }: Option) => description;
  return command.configureHelp({ optionDescription, minWidthToWrap: 20 });
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
