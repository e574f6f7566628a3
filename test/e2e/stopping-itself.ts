// Preloaded into a process under test: it stops (SIGSTOP) once the files in the folder STOP_FOLDER have STOP_BYTES,
// before anything else happens in its event loop. So it is caught in the middle of its work on any machine.

import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { until } from "../faults/http-client.ts";

const { STOP_FOLDER: folder = "", STOP_BYTES: bytes = "0" } = process.env;

if (folder !== "") {
  const timer = setInterval(() => {
    if (bytesIn(folder) < Number(bytes)) return;
    clearInterval(timer);
    process.kill(process.pid, "SIGSTOP");
  }, 1);
  timer.unref();
}

function bytesIn(path: string): number {
  if (!existsSync(path)) return 0;
  return readdirSync(path).reduce((sum, name) => sum + statSync(join(path, name)).size, 0);
}

/** Resolves when the process has stopped. */
export async function untilStopped(pid: number): Promise<void> {
  const isStopped = () => /\) T /.test(readFileSync(`/proc/${pid}/stat`, "latin1"));
  await until(isStopped, "the process stops");
}
