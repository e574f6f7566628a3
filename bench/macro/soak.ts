// Whether `foretoken serve` keeps what it should have let go: a real process over stand-ins for vLLM servers, 1,024
// clients that come and go with groups of 16 (16,384 live requests), a fifth of them vanishing on the way. Samples the
// process's resident memory, open files and heap, and prints each one's slope by least squares with its 95 % interval,
// over the second half of the run: in the first, caches fill up to their bounds. Exit status 1: a response was lost or
// wrong, or the process ended.
//
//   bun bench/macro/soak.ts [--minutes 10] [--clients 1024] [--group 16] [--tokens 48] [--json FILE]

import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";
import Table from "cli-table3";
import { VllmStandIn } from "../../test/faults/stand-in/vllm-stand-in.ts";
import { writeReport } from "../harness.ts";
import { runClient, type Tally } from "./soak-clients.ts";
import { type Trend, trendOf } from "./trend.ts";

export interface SoakShape {
  readonly minutes: number;
  readonly clients: number;
  /** Responses that a client asks for. */
  readonly group: number;
  readonly tokensMax: number;
}

interface Sample {
  readonly minute: number;
  readonly rss_mib: number;
  readonly files: number;
  readonly heap_mib: number;
  readonly objects: number;
  readonly live: number;
}

export interface SoakRun {
  readonly tally: Omit<Tally, "problems">;
  readonly problems: readonly string[];
  readonly samples: readonly Sample[];
  /** Per minute, over the second half. */
  readonly trends: Readonly<Record<Measured, Trend | null>>;
  /** When all clients have left. Connections to engines, one for each request that ran, stay open for 3 s more. */
  readonly afterwards: { readonly files: number; readonly live: number };
}

const MEASURED = ["rss_mib", "files", "heap_mib", "objects"] as const;
type Measured = (typeof MEASURED)[number];

const ROOT = resolve(import.meta.dir, "..", "..");
const SAMPLER = join(import.meta.dir, "soak-sampler.ts");
const ENGINES = 4;
const SLOTS = 128;
const SAMPLE_MS = 1_000;
const MIB = 2 ** 20;
const PAGE_BYTES = 4096;
/** Its vocabulary holds all that stand-ins say. */
const TOKENIZER = join(ROOT, "test", "fixtures", "foretoken-3m-hf");
/** Small bounds are reached early in the run. */
const BOUNDS = ["--history-mb", "4"];
/** Time at the end for the requests in flight. */
const QUIET_MS_MAX = 60_000;

type Child = Bun.Subprocess<"ignore", "pipe", "inherit">;

class Server {
  readonly url: URL;
  readonly #child: Child;
  readonly #folder: string;
  readonly #heap: Float64Array;

  private constructor(url: URL, child: Child, folder: string, heap: Float64Array) {
    this.url = url;
    this.#child = child;
    this.#folder = folder;
    this.#heap = heap;
  }

  static async start(engines: readonly string[]): Promise<Server> {
    const folder = mkdtempSync(join(tmpdir(), "foretoken-soak-"));
    const path = join(folder, "samples");
    writeFileSync(path, new Uint8Array(16));
    const workers = engines.flatMap((url) => ["--worker", url]);
    const args = ["serve", "--port", "0", "--log", "text:error", ...BOUNDS, ...workers].concat([
      "--tokenizer",
      TOKENIZER,
    ]);
    const program = ["--preload", SAMPLER, join(ROOT, "src", "main.ts")];
    const child = Bun.spawn([process.execPath, ...program, ...args], {
      stdin: "ignore",
      stdout: "pipe",
      stderr: "inherit",
      env: { ...process.env, FORETOKEN_SOAK_SAMPLES: path, FORETOKEN_PARENT: `${process.pid}` },
    });
    const { value } = await child.stdout.getReader().read();
    const [, url] = /^foretoken on (\S+)/.exec(new TextDecoder().decode(value)) ?? [];
    if (url === undefined) throw new Error("the server did not start");
    const bytes = Bun.mmap(path, { shared: true });
    const heap = new Float64Array(bytes.buffer, bytes.byteOffset, 2);
    const server = new Server(new URL(url), child, folder, heap);
    while ((await fetch(new URL("/health", url))).status !== 200) await Bun.sleep(50);
    return server;
  }

  get exitCode(): number | null {
    return this.#child.exitCode;
  }

  get files(): number {
    return readdirSync(`/proc/${this.#child.pid}/fd`).length;
  }

  async live(): Promise<number> {
    const answer = await fetch(new URL("/load", this.url));
    return ((await answer.json()) as { server_load: number }).server_load;
  }

  async sample(minute: number): Promise<Sample> {
    const [, pages] = readFileSync(`/proc/${this.#child.pid}/statm`, "utf8").split(" ");
    return {
      minute,
      rss_mib: (Number(pages) * PAGE_BYTES) / MIB,
      files: this.files,
      heap_mib: (this.#heap[0] ?? 0) / MIB,
      objects: this.#heap[1] ?? 0,
      live: await this.live(),
    };
  }

  async stop(): Promise<void> {
    this.#child.kill("SIGKILL");
    await this.#child.exited;
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

export async function soak(shape: SoakShape): Promise<SoakRun> {
  const options = { slots: SLOTS, blocks: 65_536 };
  const standIns = await Promise.all(
    Array.from({ length: ENGINES }, () => VllmStandIn.start(options)),
  );
  const server = await Server.start(standIns.map(({ url }) => url));
  const tally: Tally = {
    ...{ responses: 0, tokens: 0, vanished: 0, followed: 0, refused: 0 },
    problems: [],
  };
  const samples: Sample[] = [];
  try {
    const startMs = performance.now();
    const minutes = () => (performance.now() - startMs) / 60_000;
    const isOver = () => minutes() >= shape.minutes || server.exitCode !== null;
    let number = 0;
    const { group: responses, tokensMax } = shape;
    const client = async () => {
      while (!isOver()) {
        number += 1;
        await runClient(number, { url: server.url, responses, tokensMax, tally });
      }
    };
    const sampling = (async () => {
      while (!isOver()) {
        samples.push(await server.sample(minutes()));
        await Bun.sleep(SAMPLE_MS);
      }
    })();
    const clients = Promise.all(Array.from({ length: shape.clients }, client));
    await sampling;
    // A client that is served last waits for all the others.
    await Promise.race([clients, Bun.sleep(QUIET_MS_MAX)]);
    const afterwards = await quiet(server);
    return {
      tally: counted(tally),
      problems: tally.problems,
      samples,
      trends: trends(samples),
      afterwards,
    };
  } finally {
    await server.stop();
    await Promise.all(standIns.map((standIn) => standIn.stop()));
  }
}

function counted({ problems: _problems, ...counts }: Tally): Omit<Tally, "problems"> {
  return counts;
}

/** What clients that vanished have left goes by itself. */
async function quiet(server: Server): Promise<SoakRun["afterwards"]> {
  const endMs = performance.now() + QUIET_MS_MAX;
  while ((await server.live()) > 0 && performance.now() < endMs) await Bun.sleep(SAMPLE_MS);
  return { files: server.files, live: await server.live() };
}

function trends(samples: readonly Sample[]): SoakRun["trends"] {
  const half = samples.slice(samples.length >> 1);
  const trend = (of: Measured) => trendOf(half.map((one) => ({ x: one.minute, y: one[of] })));
  return {
    rss_mib: trend("rss_mib"),
    files: trend("files"),
    heap_mib: trend("heap_mib"),
    objects: trend("objects"),
  };
}

function print({ tally, problems, samples, trends: all, afterwards }: SoakRun): void {
  const table = new Table({
    head: ["", "median", "largest", "slope per minute", "95 % interval"],
    style: { head: [], border: [] },
  });
  for (const name of MEASURED) {
    const values = samples.map((sample) => sample[name]).sort((a, b) => a - b);
    const trend = all[name];
    const shown = (value: number | undefined) => (value ?? 0).toFixed(name === "objects" ? 0 : 2);
    table.push([
      name,
      shown(values[values.length >> 1]),
      shown(values.at(-1)),
      trend === null ? "-" : shown(trend.slope),
      trend === null ? "-" : `${shown(trend.low)} to ${shown(trend.high)}`,
    ]);
  }
  const live = samples.map((sample) => sample.live).sort((a, b) => a - b);
  console.log(table.toString());
  console.log(
    `${tally.responses} responses of ${tally.tokens} tokens read and right; ${tally.vanished} clients vanished, ` +
      `${tally.followed} followed the stream, ${tally.refused} were refused; live requests: median ` +
      `${live[live.length >> 1]}, largest ${live.at(-1)}; afterwards ${afterwards.live} live, ${afterwards.files} files`,
  );
  for (const problem of problems) console.log(`problem: ${problem}`);
}

if (import.meta.main) {
  const { values } = parseArgs({
    options: {
      minutes: { type: "string", default: "10" },
      clients: { type: "string", default: "1024" },
      group: { type: "string", default: "16" },
      tokens: { type: "string", default: "48" },
      json: { type: "string" },
    },
  });
  const run = await soak({
    minutes: Number(values.minutes),
    clients: Number(values.clients),
    group: Number(values.group),
    tokensMax: Number(values.tokens),
  });
  print(run);
  writeReport(values.json, run);
  process.exit(run.problems.length === 0 && run.afterwards.live === 0 ? 0 : 1);
}
