// A command of the tool in this process: its exit status, and what it printed.

import { spyOn } from "bun:test";
import { main } from "../../src/cli/cli.ts";

export async function ran(
  ...args: string[]
): Promise<{ status: number; out: string; err: string }> {
  const out = spyOn(console, "log").mockImplementation(() => {});
  const told = spyOn(console, "error").mockImplementation(() => {});
  const written = spyOn(process.stderr, "write").mockImplementation(() => true);
  const textOf = (spy: { readonly mock: { readonly calls: readonly (readonly unknown[])[] } }) =>
    spy.mock.calls.map((call) => call.join(" ")).join("\n");
  try {
    const status = await main(args);
    return { status, out: textOf(out), err: `${textOf(told)}${textOf(written)}` };
  } finally {
    for (const spy of [out, told, written]) spy.mockRestore();
  }
}
