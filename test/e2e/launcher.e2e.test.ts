// `npx foretoken serve` and a script of package.json, as real processes: when the runner is told to stop, or is
// killed, what it started drains and leaves its port. What is in the background on purpose goes on.

import { afterEach, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync, mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { freePort } from "../../src/tools/up/ports.ts";
import { untilTrue } from "./fleet.ts";
import { engineMissing, ROOT, scratch } from "./tool.ts";

const missing = engineMissing() ?? (Bun.which("npx") === null ? "there is no npx" : null);
if (missing !== null) console.warn(`skipped: ${missing}`);
const npxTest = test.skipIf(missing !== null || !existsSync("/proc/self/stat"));

setDefaultTimeout(120_000);

const children: { pid: number; kill(signal: NodeJS.Signals): void }[] = [];

afterEach(() => {
  for (const { pid } of children.splice(0)) {
    try {
      process.kill(-pid, "SIGKILL");
    } catch {
      // The group has ended.
    }
  }
});

/** A project that has foretoken among its dependencies. */
function project(scripts: Record<string, string>): string {
  const folder = scratch();
  mkdirSync(join(folder, "node_modules", ".bin"), { recursive: true });
  symlinkSync(join(ROOT, "src", "main.ts"), join(folder, "node_modules", ".bin", "foretoken"));
  symlinkSync(process.execPath, join(folder, "node_modules", ".bin", "bun"));
  writeFileSync(join(folder, "package.json"), JSON.stringify({ name: "user", scripts }));
  return folder;
}

/** In a process group of its own, as a terminal's job is. */
function run(folder: string, command: readonly string[]) {
  const child = Bun.spawn([...command], {
    cwd: folder,
    detached: true,
    stdio: ["ignore", "ignore", "ignore"],
    env: { ...process.env, PATH: `${dirname(Bun.which("npx") ?? "")}:${process.env.PATH}` },
  });
  children.push(child);
  return child;
}

const SERVE = ["serve", "--llama", "1", "--slots", "1", "--kv-tokens", "512", "--port"];

const isHealthy = (port: number) => async () => {
  try {
    return (await fetch(`http://127.0.0.1:${port}/health`)).ok;
  } catch {
    return false;
  }
};

const isClosed = (port: number) => async () => {
  try {
    await fetch(`http://127.0.0.1:${port}/health`);
    return false;
  } catch {
    return true;
  }
};

for (const signal of ["SIGTERM", "SIGKILL"] as const) {
  npxTest(`launcher: ${signal} to npx ends the sidecar that it started`, async () => {
    const port = freePort("127.0.0.1");
    const child = run(project({}), ["npx", "foretoken", ...SERVE, String(port)]);
    await untilTrue(isHealthy(port), "the sidecar", 60_000);
    child.kill(signal);
    await untilTrue(isClosed(port), "the port", 60_000);
  });
}

npxTest("launcher: SIGTERM to npm ends the worker that its script started", async () => {
  const port = freePort("127.0.0.1");
  const listen = `foretoken worker --listen 127.0.0.1:${port} --slots 1 --kv-tokens 512`;
  const child = run(project({ start: listen }), ["npm", "start"]);
  const isUp = async () => !(await isClosed(port)());
  await untilTrue(isUp, "the worker", 60_000);
  child.kill("SIGTERM");
  await untilTrue(isClosed(port), "the port", 60_000);
});

npxTest(
  "launcher: a sidecar in the background outlives the shell and the runner that started it",
  async () => {
    const port = freePort("127.0.0.1");
    const command = `nohup foretoken ${SERVE.join(" ")} ${port} >/dev/null 2>&1 & sleep 1`;
    const child = run(project({ background: command }), ["npm", "run", "background"]);
    await untilTrue(isHealthy(port), "the sidecar", 60_000);
    await child.exited;
    // Several looks of the watch.
    const endMs = performance.now() + 1_000;
    await untilTrue(() => performance.now() > endMs, "a second");
    expect(await isHealthy(port)()).toBe(true);
  },
);
