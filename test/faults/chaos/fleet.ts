// The processes of a chaos run: engine servers behind proxies, and the sidecar with a journal. It inflicts faults on them
// and starts again what was killed, as a supervisor would.

import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { assert, present, unreachable } from "../../../src/core/base/assert.ts";
import { freePort } from "../../../src/tools/up/ports.ts";
import { CuttingProxy } from "../cutting-proxy.ts";
import { ToolProcess } from "../process.ts";
import { type Member, RestartedProcess } from "./members.ts";
import { CHAOS_KINDS, type ChaosKind, type PlannedFault } from "./plan.ts";

export const HOST = "127.0.0.1";
const CALL_MS_MAX = 2_000;
const PRLIMIT = Bun.which("prlimit");

/** Kinds of faults that this machine can inflict. */
export function possibleKinds(): ChaosKind[] {
  return CHAOS_KINDS.filter((kind) => kind !== "disk_full" || PRLIMIT !== null);
}

export interface FleetParts {
  /** Engine servers, already starting. */
  readonly members: readonly Member[];
  readonly sidecarArgs: readonly string[];
  /** Time for a rollout under faults. */
  readonly rolloutMsMax: number;
  /** Folder for the journal. */
  readonly folder: string;
}

interface Link {
  readonly member: Member;
  readonly proxy: CuttingProxy;
}

export class Fleet {
  readonly #parts: FleetParts;
  readonly #links: readonly Link[];
  readonly #journal: string;
  readonly #sidecar: RestartedProcess;

  /** Use `start`. */
  constructor(parts: FleetParts, links: readonly Link[]) {
    this.#parts = parts;
    this.#links = links;
    this.#journal = join(parts.folder, "journal");
    const port = freePort(HOST);
    const args = [
      ...["serve", "--port", `${port}`, "--journal", this.#journal],
      ...links.flatMap(({ proxy }) => ["--worker", `http://${HOST}:${proxy.port}`]),
      ...["--chunk-tokens", "12", "--log", "text:warn"],
      ...parts.sidecarArgs,
    ];
    this.#sidecar = new RestartedProcess(port, () => new ToolProcess(args));
  }

  /** @throws AppError worker_failed; then nothing runs. */
  static async start(parts: FleetParts): Promise<Fleet> {
    const links: Link[] = [];
    for (const member of parts.members) {
      links.push({ member, proxy: await CuttingProxy.listen(() => member.port) });
    }
    const fleet = new Fleet(parts, links);
    try {
      await Promise.all(parts.members.map((member) => member.started()));
      await fleet.#sidecar.started();
      return fleet;
    } catch (error) {
      await fleet.close();
      throw error;
    }
  }

  get url(): string {
    return `http://${HOST}:${this.#sidecar.port}`;
  }

  get rolloutMsMax(): number {
    return this.#parts.rolloutMsMax;
  }

  /** Whether every engine serves. */
  async isWhole(): Promise<boolean> {
    return (await this.#serving()) === this.#links.length;
  }

  /** Last output of all processes. */
  get lines(): readonly string[] {
    const named = (name: string, lines: readonly string[]) =>
      lines.map((line) => `${name}: ${line}`);
    return [
      ...this.#links.flatMap(({ member }, i) => named(`worker ${i}`, member.lines)),
      ...named("sidecar", this.#sidecar.lines),
    ];
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
  async #serving(): Promise<number> {
    if (!this.#sidecar.isRunning) return 0;
    const answer = (await this.ask("/foretoken/workers")) as {
      workers: { name: string; state: string }[];
    } | null;
    const ready = (answer?.workers ?? []).filter(({ state }) => state === "ready");
    return ready.filter(({ name }) => {
      const link = this.#links.find(({ proxy }) => name.endsWith(`:${proxy.port}`));
      return link === undefined || (link.member.isRunning && !link.proxy.isBroken);
    }).length;
  }

  /** Resolves when the fault is over, and what was killed runs again. The trainer's updates are not inflicted here. */
  async inflict(fault: PlannedFault): Promise<void> {
    const { kind, ms } = fault;
    assert(kind !== "weights", "the trainer updates the weights");
    if (kind === "sidecar_stop") return await this.#sidecar.stopFor(ms);
    if (kind === "sidecar_kill") return await this.#sidecar.killFor(ms);
    if (kind === "disk_full") {
      this.#limitFiles(this.#fileBytesMax());
      await Bun.sleep(ms);
      this.#limitFiles(null);
      return;
    }
    const { member, proxy } = present(this.#links[fault.worker], "a fault is of one of the links");
    if (kind === "worker_kill") return await member.killFor(ms);
    if (kind === "worker_stop") return await member.stopFor(ms);
    if (kind === "link_cut") proxy.refuse();
    else if (kind === "link_silent") proxy.stall();
    else if (kind === "link_slow") proxy.slow(fault.latencyMs);
    else unreachable(kind);
    await Bun.sleep(ms);
    proxy.heal();
  }

  async close(): Promise<void> {
    await this.#sidecar.close();
    await Promise.all(this.#links.map(({ member }) => member.close()));
    await Promise.all(this.#links.map(({ proxy }) => proxy.close()));
  }

  /**
   * Limits the size of files: as on a full disk, a write ends in its middle, and the next one fails. null: no limit.
   */
  #limitFiles(bytes: number | null): void {
    if (PRLIMIT === null) return;
    const limit = `--fsize=${bytes ?? "unlimited"}:unlimited`;
    // The process may have ended meanwhile: then there is nothing to limit.
    Bun.spawnSync([PRLIMIT, "--pid", `${this.#sidecar.pid}`, limit], { stderr: "ignore" });
  }

  /** The journal that is written grows little; a file of fixed size can be overwritten, as on a full disk. */
  #fileBytesMax(): number {
    const files = readdirSync(this.#journal).map((name) => {
      return { isJournal: name.endsWith(".journal"), ...statSync(join(this.#journal, name)) };
    });
    const fixed = files.filter(({ isJournal }) => !isJournal).map(({ size }) => size);
    const journals = files.filter(({ isJournal }) => isJournal);
    const newest = journals.toSorted((a, b) => b.mtimeMs - a.mtimeMs)[0];
    return Math.max(...fixed, (newest?.size ?? 0) + 100);
  }
}
