// A real Mooncake master and two engines of the pool without vLLM: one of them stands still before the other has ever
// reached it, and the other's own segment is too small for what it saves. No save waits for the one that stands still.

import { describe, expect, test } from "bun:test";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { findVllm } from "../../src/tools/up/find-vllm.ts";
import { findMooncake, masterSpec, poolEnvironment } from "../../src/tools/up/mooncake.ts";
import { freePorts } from "../../src/tools/up/ports.ts";
import { ROOT, vllmMissing } from "./fleet.ts";

const HOST = "127.0.0.1";
const MIB = 2 ** 20;
const SCRIPT = join(import.meta.dir, "python", "pool_save.py");
const PACKAGE = join(ROOT, "native", "foretoken_vllm", "src");
/** Without the guard a save lasted as long as the other one stood still: 25 s. */
const SAVE_S_MAX = 15;

interface Save {
  readonly code: number;
  readonly s: number;
  readonly at: number;
}

const missing = vllmMissing();
if (missing !== null) console.log(`pool-save: skipped, ${missing}`);

describe.skipIf(missing !== null)("a KV pool with an engine that stands still", () => {
  test("no save waits for it, and blocks are saved again once the master has dropped it", async () => {
    const { python } = findVllm(process.env.FORETOKEN_VLLM ?? null, ROOT);
    const [rpcPort = 0, adminPort = 0] = freePorts(2, HOST);
    const logPath = join(tmpdir(), "unused");
    const found = findMooncake(python);
    const { command } = masterSpec({ found, host: HOST, rpcPort, adminPort, logPath });
    const env = { ...process.env, ...poolEnvironment(HOST), PYTHONPATH: PACKAGE };
    const started: { kill(signal: "SIGKILL"): void }[] = [];
    started.push(Bun.spawn([...command], { env, stdout: "ignore", stderr: "ignore" }));
    const engine = (role: string, segmentBytes: number) => {
      const args = [SCRIPT, `${HOST}:${rpcPort}`, role, String(segmentBytes)];
      const child = Bun.spawn([python, ...args], { env, stdout: "pipe", stderr: "ignore" });
      started.push(child);
      return child;
    };
    try {
      await answers(`http://${HOST}:${adminPort}/health`);
      const owner = engine("own", 64 * MIB);
      await owner.stdout.getReader().read();
      await hasBeacon(`http://${HOST}:${adminPort}`);
      owner.kill("SIGSTOP");
      const lines = (await new Response(engine("save", 16 * MIB).stdout).text()).trim().split("\n");
      const saves = lines.map((line) => JSON.parse(line) as Partial<Save>);
      const made = saves.filter((save): save is Save => save.code !== undefined);
      expect(made.length).toBeGreaterThan(1);
      expect(Math.max(...made.map(({ s }) => s))).toBeLessThan(SAVE_S_MAX);
      expect(made[0]?.code).toBe(-800);
      // The master drops a silent engine after 5 s.
      const again = made.find(({ code }) => code === 0);
      expect(again).toBeDefined();
      console.log(`pool-save: blocks are saved again after ${again?.at.toFixed(1)} s`);
    } finally {
      for (const child of started) child.kill("SIGKILL");
    }
  }, 180_000);
});

async function answers(url: string): Promise<void> {
  for (;;) {
    const isThere = await fetch(url).then(
      ({ ok }) => ok,
      () => false,
    );
    if (isThere) return;
    await Bun.sleep(50);
  }
}

async function hasBeacon(admin: string): Promise<void> {
  while (!(await (await fetch(`${admin}/get_all_keys`)).text()).includes("foretoken-beacon/")) {
    await Bun.sleep(50);
  }
}
