// Puts into a journal's folder what is no journal: FIFOs, folders, links to files of others, leftovers of all names. The
// start ends by name or goes on; it never hangs, and what a link leads to stays as it is.

import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { engineMissing } from "../../e2e/tool.ts";
import { temporaryFolder } from "../../suite/temporary-folder.ts";
import { ToolProcess } from "../process.ts";
import { rounds } from "./scale.ts";

setDefaultTimeout(300_000);

const scratch = temporaryFolder("journal-folder");
const victim = join(scratch, "victim");
const PRECIOUS = "precious\n".repeat(100);
writeFileSync(victim, PRECIOUS);

const NAMES = ["x.journal", "weights", "lock", "lock.sqlite"];

/** How a start on the folder ends: it listens, or it has said why not. */
async function startOn(folder: string): Promise<string> {
  const tool = new ToolProcess(["serve", "--llama", "1", "--port", "0", "--journal", folder]);
  try {
    const said = await Promise.race([tool.said(/state=ready/, 60_000), tool.exited]);
    return typeof said === "number" ? tool.text : "ready";
  } catch (error) {
    return String(error);
  } finally {
    await tool.kill();
  }
}

describe.skipIf(engineMissing() !== null)("journal folder", () => {
  const kinds: [string, (path: string) => void][] = [
    ["FIFO", (path) => Bun.spawnSync(["mkfifo", path])],
    ["folder", (path) => mkdirSync(path)],
  ];

  for (const [kind, make] of kinds) {
    test(`journal folder: a ${kind} where a file belongs ends the start, which names it`, async () => {
      for (const name of NAMES.slice(0, rounds(2, NAMES.length))) {
        const folder = join(scratch, `${kind}-${name}`);
        mkdirSync(folder);
        make(join(folder, name));
        expect(await startOn(folder)).toContain(`${name} in it is no regular file`);
        rmSync(join(folder, name), { recursive: true });
        expect(await startOn(folder)).toBe("ready");
      }
    });
  }

  test("journal folder: what a link leads to is not written", async () => {
    const links = ["x.journal", "weights"];
    for (const name of links.slice(0, rounds(2, links.length))) {
      const folder = join(scratch, `link-${name}`);
      mkdirSync(folder);
      symlinkSync(victim, join(folder, name));
      expect(await startOn(folder)).not.toBe("ready");
      expect(readFileSync(victim, "utf8")).toBe(PRECIOUS);
    }
  });
});
