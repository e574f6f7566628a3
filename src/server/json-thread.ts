// The thread that reads large bodies: it names their bytes, parses them, and packs their prompts, which then cross to the
// serving thread at the speed of memory.

import { serveJobs } from "../text/job-lane.ts";
import { digestOf, jsonOf, packed, type ReadBody } from "./body-reader.ts";

serveJobs(() => (bytes: Uint8Array, moves): ReadBody => {
  return { digest: digestOf(bytes), value: packed(jsonOf(bytes), moves) };
});
