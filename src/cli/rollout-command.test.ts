// `foretoken rollout`: where its prompts come from.

import { afterEach, expect, spyOn, test } from "bun:test";
import { main } from "./cli.ts";
import { EXIT_USAGE } from "./output.ts";

const said = spyOn(console, "error").mockImplementation(() => {});
afterEach(() => said.mockClear());

for (const [args, problem] of [
  [["rollout"], "no prompts: name a file of JSON lines, or give --demo"],
  [["rollout", "--demo", "p.jsonl"], "--demo has its own prompts: leave out p.jsonl"],
  [["rollout", "p.jsonl"], "--out RESPONSES.jsonl is required"],
] as const) {
  test(`rollout: refuses ${args.join(" ")}`, async () => {
    expect(await main(args)).toBe(EXIT_USAGE);
    expect(said.mock.calls.flat().join("\n")).toContain(problem);
  });
}
