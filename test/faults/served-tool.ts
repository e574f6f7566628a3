// A process of the tool that serves while the tests of a file or a group run.

import { afterAll, beforeAll } from "bun:test";
import { present } from "../../src/core/base/assert.ts";
import { engineMissing } from "../e2e/tool.ts";
import { ToolProcess } from "./process.ts";

/** Returns a getter of the process, for use inside of a test. Where the embedded engine cannot run there is none. */
export function servedTool(...args: string[]): () => ToolProcess {
  let tool: ToolProcess | null = null;
  beforeAll(async () => {
    if (engineMissing() === null) tool = await ToolProcess.serving(...args);
  });
  afterAll(() => tool?.kill());
  return () => present(tool, "the tool serves");
}
