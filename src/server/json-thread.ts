// The thread that reads large bodies: it names their bytes, parses them, and packs their prompts, which then cross to the
// serving thread at the speed of memory.

import { serveJobs } from "../text/job-lane.ts";
import { packed, type ReadBody, readBytes } from "./body-reader.ts";

serveJobs(() => (bytes: Uint8Array, moves): ReadBody => {
  const read = readBytes(bytes);
  return { ...read, value: packed(read.value, moves) };
});
