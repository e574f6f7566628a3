import { test } from "bun:test";
import { engineMissing } from "../e2e/tool.ts";

const missing = engineMissing();
if (missing !== null) console.warn(`skipped, the embedded engine cannot run here: ${missing}`);

/** A test that the embedded engine runs in; skipped where it cannot. */
export const engineTest = test.skipIf(missing !== null);
