#!/usr/bin/env bun
// Entry of the command-line tool. The tool starts itself again to read weights: a child loads no command.

import { WEIGHTS_CHILD } from "./core/base/program.ts";

// A reader that leaves early (`foretoken rollout --help | head`) is no error.
process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  if (error.code !== "EPIPE") throw error;
});

/** Commands that connect to engines, of which one may answer late or never: such a program ends all the same. */
const SERVING: readonly (string | undefined)[] = ["serve", "up"];
/** Time in which a program that has served ends by itself. */
const EXIT_MS_MAX = 1_000;

const [command, ...args] = process.argv.slice(2);
if (command === WEIGHTS_CHILD) {
  const { runWeightsChild } = await import("./engines/llama/weights-child.ts");
  runWeightsChild(args[0] ?? "");
} else {
  const { main } = await import("./cli/cli.ts");
  process.exitCode = await main(process.argv.slice(2));
  if (SERVING.includes(command)) setTimeout(() => process.exit(), EXIT_MS_MAX).unref();
}
