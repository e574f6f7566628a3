// The command-line tool: its commands, and the one place where an error becomes an exit status.

import { Command, CommanderError, type Option } from "commander";
import packageJson from "../../package.json" with { type: "json" };
import { checkEnvironment } from "../config/environment.ts";
import { AppError } from "../core/base/errors.ts";
import { EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE } from "./output.ts";

/** Sets the exit status. */
type SetStatus = (status: number) => void;

/** Commands by name. Only the module of the command in use is loaded: loading all takes longer than many a command. */
const COMMANDS: Readonly<Record<string, () => Promise<(setStatus: SetStatus) => Command>>> = {
  rollout: async () => (await import("./rollout-command.ts")).rolloutCommand,
  serve: async () => (await import("./serve-command.ts")).serveCommand,
  up: async () => (await import("./up-command.ts")).upCommand,
  status: async () => (await import("./status-command.ts")).statusCommand,
  doctor: async () => (await import("./doctor-command.ts")).doctorCommand,
  verify: async () => (await import("./verify-command.ts")).verifyCommand,
  replay: async () => (await import("./replay-command.ts")).replayCommand,
  simulate: async () => (await import("./simulate-command.ts")).simulateCommand,
  trace: async () => (await import("./trace-command.ts")).traceCommand,
  "draft-server": async () => (await import("./draft-server-command.ts")).draftServerCommand,
};

/** Runs the tool; returns the exit status. Errors are printed on stderr. */
export async function main(args: readonly string[]): Promise<number> {
  let status = 0;
  const setStatus: SetStatus = (value) => {
    status = value;
  };
  try {
    const program = await programOf(setStatus, args[0]);
    await program.parseAsync(args, { from: "user" });
    return status;
  } catch (error) {
    return statusOf(error);
  }
}

/** The tool with the command of this name, or with all commands if there is none. */
export async function programOf(setStatus: SetStatus, name = ""): Promise<Command> {
  const program = new Command("foretoken")
    .description("A proxy between an RL trainer and its vLLM servers that shortens the rollout.")
    .version(packageJson.version)
    .exitOverride()
    .showHelpAfterError("(foretoken COMMAND --help lists the options)")
    .hook("preAction", () => checkEnvironment(Object.keys(process.env)));
  const named = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined;
  for (const load of named === undefined ? Object.values(COMMANDS) : [named]) {
    const command = await load();
    program.addCommand(laidOut(command(setStatus).exitOverride()));
  }
  return laidOut(program);
}

/** Formats the help: descriptions name defaults, and the names of environment variables are explained once. */
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
