// A folder of a test file's own, which goes when the tests around it are over.

import { afterAll } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Call it where tests are declared, not in one of them. */
export function temporaryFolder(name: string): string {
  const folder = mkdtempSync(join(tmpdir(), `foretoken-${name}-`));
  afterAll(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}
