// The processes of a chaos run: worker processes behind links, and the sidecar with an engine of its own and a journal.
// It inflicts faults on them and starts again what was killed, as a supervisor would.

import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { assert, present, unreachable } from "../base/assert.ts";
import { freePort } from "../supervise/ports.ts";
import { LinkProxy } from "./link-proxy.ts";
import { CHAOS_KINDS, type ChaosKind, LINKS, type PlannedFault } from "./plan.ts";
import { ChaosProcess, type Installation } from "./process.ts";

const HOST = "127.0.0.1";
const START_MS_MAX = 120_000;
const CALL_MS_MAX = 2_000;
const ENGINE = ["--deterministic", "--slots", "2", "--kv-tokens", "2048", "--max-model-len", "512"];
const PRLIMIT = Bun.which("prlimit");

/** Those that this machine can inflict. */
export function possibleKinds(): ChaosKind[] {
  return CHAOS_KINDS.filter((kind) => kind !== "disk_full" || PRLIMIT !== null);
}

interface Link {
  readonly port: number;
  readonly proxy: LinkProxy;
  process: ChaosProcess;
}

export class Fleet {
  readonly #links: readonly Link[];
  readonly #port: number;
  readonly #journal: string;
  readonly #program: readonly string[];
  #sidecar: ChaosProcess;

  /** Use `start`. */
  constructor(options: {
    readonly program: readonly string[];
    readonly links: readonly Link[];
    readonly port: number;
    readonly journal: string;
  }) {
    const { program, links, port, journal } = options;
    this.#program = program;
    this.#links = links;
    this.#port = port;
    this.#journal = journal;
    this.#sidecar = this.#startSidecar();
  }

  /** `folder`: for the journal. @throws AppError worker_failed. */
  static async start({ program }: Installation, folder: string): Promise<Fleet> {
    const links: Link[] = [];
    for (let i = 0; i < LINKS; i += 1) {
      const port = freePort(HOST);
      const proxy = await LinkProxy.listen(port);
      links.push({ port, proxy, process: startWorker(program, port) });
    }
    const fleet = new Fleet({
      ...{ program, links, port: freePort(HOST), journal: join(folder, "journal") },
    });
    try {
      await Promise.all(links.map(({ process }) => process.said("worker on", START_MS_MAX)));
      await fleet.#sidecar.said("foretoken on", START_MS_MAX);
      return fleet;
    } catch (error) {
      await fleet.close();
      throw error;
    }
  }

  get url(): string {
    return `http://${HOST}:${this.#port}`;
  }

  /** Engines of all processes. */
  get size(): number {
    return this.#links.length + 1;
  }

  /** What the processes wrote last. */
  get lines(): readonly string[] {
    return [...this.#links.map(({ process }) => process), this.#sidecar].flatMap((one, i) => {
      const name = i === this.#links.length ? "sidecar" : `worker ${i}`;
      return one.lines.map((line) => `${name}: ${line}`);
    });
  }

  /** A GET or POST of JSON; null: it was not answered, or not with 200. */
  async ask(path: string, body?: object, msMax = CALL_MS_MAX): Promise<unknown> {
    const signal = AbortSignal.timeout(msMax);
    const init = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
    try {
      const answer = await fetch(`${this.url}${path}`, { ...init, signal });
      return answer.ok ? await answer.json() : null;
    } catch {
      return null;
    }
  }

  /** Engines that serve: the sidecar says so, and nothing that was inflicted on them lasts. */
  async serving(): Promise<number> {
    if (!this.#sidecar.isRunning) return 0;
    const answer = (await this.ask("/foretoken/workers")) as {
      workers: { name: string; state: string }[];
    } | null;
    const ready = (answer?.workers ?? []).filter(({ state }) => state === "ready");
    return ready.filter(({ name }) => {
      const link = this.#links.find(({ proxy }) => name.endsWith(`:${proxy.port}`));
      return link === undefined || (link.process.isRunning && !link.proxy.isBroken);
    }).length;
  }

  /** Resolves when the fault is over, and what was killed runs again. The trainer's updates are not inflicted here. */
  async inflict(fault: PlannedFault): Promise<void> {
    const { kind, ms } = fault;
    const link = present(this.#links[fault.worker], "a fault is of one of the links");
    switch (kind) {
      case "worker_kill":
        return await this.#killWorker(link, ms);
      case "worker_stop":
        return await stopFor(link.process, ms);
      case "sidecar_stop":
        return await stopFor(this.#sidecar, ms);
      case "sidecar_kill":
        return await this.#killSidecar(ms);
      case "link_cut":
        link.proxy.cut();
        break;
      case "link_silent":
        link.proxy.hold();
        break;
      case "link_slow":
        link.proxy.slow(fault.latencyMs);
        break;
      case "disk_full":
        this.#limitFiles(this.#journalBytes() + 100);
        await Bun.sleep(ms);
        this.#limitFiles(null);
        return;
      case "weights":
        return assert(false, "the trainer updates the weights");
      default:
        return unreachable(kind);
    }
    await Bun.sleep(ms);
    link.proxy.heal();
  }

  async close(): Promise<void> {
    const processes = [this.#sidecar, ...this.#links.map(({ process }) => process)];
    await Promise.all(processes.map((one) => one.kill()));
    await Promise.all(this.#links.map(({ proxy }) => proxy.close()));
  }

  async #killWorker(link: Link, ms: number): Promise<void> {
    const { process: killed } = link;
    await killed.kill();
    await Bun.sleep(ms);
    // It was killed twice, and is started once.
    if (link.process !== killed) return;
    link.process = startWorker(this.#program, link.port);
    await link.process.said("worker on", START_MS_MAX);
  }

  async #killSidecar(ms: number): Promise<void> {
    const killed = this.#sidecar;
    await killed.kill();
    await Bun.sleep(ms);
    if (this.#sidecar !== killed) return;
    this.#sidecar = this.#startSidecar();
    await this.#sidecar.said("foretoken on", START_MS_MAX);
  }

  #startSidecar(): ChaosProcess {
    return new ChaosProcess(this.#program, [
      ...["serve", "--port", `${this.#port}`, "--llama", "1", "--journal", this.#journal],
      ...this.#links.flatMap(({ proxy }) => ["--worker", `ws://${HOST}:${proxy.port}`]),
      ...["--chunk-tokens", "12", "--log-level", "warn", "--parent", `${process.pid}`, ...ENGINE],
    ]);
  }

  /** As on a full disk, a write ends in its middle, and the next one fails. null: nothing limits it. */
  #limitFiles(bytes: number | null): void {
    if (PRLIMIT === null) return;
    const limit = `--fsize=${bytes ?? "unlimited"}:unlimited`;
    // The process may have ended meanwhile: then there is nothing to limit.
    Bun.spawnSync([PRLIMIT, "--pid", `${this.#sidecar.pid}`, limit], { stderr: "ignore" });
  }

  /** Of the file that is written. */
  #journalBytes(): number {
    const files = readdirSync(this.#journal).map((name) => statSync(join(this.#journal, name)));
    const newest = files.toSorted((a, b) => b.mtimeMs - a.mtimeMs)[0];
    return newest?.size ?? 0;
  }
}

async function stopFor(process: ChaosProcess, ms: number): Promise<void> {
  process.signal("SIGSTOP");
  await Bun.sleep(ms);
  process.signal("SIGCONT");
}

function startWorker(program: readonly string[], port: number): ChaosProcess {
  return new ChaosProcess(program, ["worker", "--listen", `${HOST}:${port}`, ...ENGINE]);
}
