#!/usr/bin/env bun
// Entry of the command-line tool.

import { main } from "./cli/cli.ts";

process.exitCode = await main(process.argv.slice(2));
