// What a journal costs for each token: the append-only file against bun:sqlite in WAL mode, which gets the same pieces in
// one transaction for each flush, and against a record for each batch of tokens. CPU time of the process, disk included;
// appending to the response, which happens with and without a journal, is taken off.
//
//   bun bench/micro/journal.ts [--tokens 2000000] [--requests 4096] [--per-step 3] [--json FILE]

import { Database } from "bun:sqlite";
import { closeSync, mkdtempSync, openSync, rmSync, statSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { groupId, weightEpoch, workerId } from "../../src/core/base/ids.ts";
import { JournalLog } from "../../src/core/journal/log.ts";
import { type Request, RequestBuffer } from "../../src/core/request/buffer.ts";
import { SAMPLING_DEFAULTS } from "../../src/core/request/request.ts";
import { type Measurement, ratioTable, writeResults } from "../harness.ts";

interface Shape {
  readonly tokens: number;
  readonly requests: number;
  readonly perStep: number;
}

interface Sink {
  began(request: Request): void;
  changed(request: Request): void;
  flush(): void;
  /** Returns the bytes written. */
  close(): number;
}

/** Engine steps between two flushes: 50 ms at 20 ms a step, rounded up. */
const STEPS_PER_FLUSH = 3;
const CHUNK_TOKENS = 2048;
const ROUNDS = 3;

function grow({ tokens, requests, perStep }: Shape, sink: Sink): number {
  const buffer = new RequestBuffer();
  const tokensMax = Math.ceil(tokens / requests) + perStep;
  const sampling = { temperature: 1, seed: 1, tokensMax, stopTokenIds: [], ...SAMPLING_DEFAULTS };
  const prompt = Int32Array.of(1);
  const group = buffer.add({ groupId: groupId("g"), prompt, size: requests, sampling });
  for (const request of group.requests) sink.began(request);
  const ids = Int32Array.from({ length: perStep }, (_, i) => 1000 + i);
  const logprobs = new Float32Array(perStep).fill(-0.5);
  const before = process.cpuUsage();
  for (let step = 0; step * perStep * requests < tokens; step += 1) {
    for (const request of group.requests) {
      const { response } = request;
      if (response.length % CHUNK_TOKENS < perStep) response.openChunk(workerId(0), weightEpoch(0));
      response.append(response.length, ids, logprobs);
      sink.changed(request);
    }
    if (step % STEPS_PER_FLUSH === 0) sink.flush();
  }
  sink.flush();
  const { user, system } = process.cpuUsage(before);
  return user + system;
}

function logSink(path: string, flushesAlways: boolean): Sink {
  const log = new JournalLog();
  const file = openSync(path, "w");
  const flush = () => {
    if (log.hasNews) writeSync(file, log.take());
  };
  return {
    began: (request) => log.follow(request, request.spec.sampleIndex),
    changed: (request) => {
      log.changed(request);
      if (flushesAlways) flush();
    },
    flush,
    close: () => {
      closeSync(file);
      return statSync(path).size;
    },
  };
}

function sqliteSink(path: string): Sink {
  const database = new Database(path);
  database.run("PRAGMA journal_mode=WAL");
  database.run("PRAGMA synchronous=NORMAL");
  database.run("CREATE TABLE output (stream INTEGER, at INTEGER, tokens BLOB, logprobs BLOB)");
  const insert = database.prepare("INSERT INTO output VALUES (?, ?, ?, ?)");
  const written = new Map<Request, number>();
  const changed = new Set<Request>();
  const bytesOf = (values: Int32Array | Float32Array): Uint8Array =>
    new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
  const flush = database.transaction(() => {
    for (const request of changed) {
      const { response, spec } = request;
      const from = written.get(request) ?? 0;
      const [tokens, logprobs] = [response.tokens(from), response.logprobs(from)];
      insert.run(spec.sampleIndex, from, bytesOf(tokens), bytesOf(logprobs));
      written.set(request, response.length);
    }
    changed.clear();
  });
  return {
    began() {},
    changed: (request) => changed.add(request),
    flush,
    close: () => {
      database.run("PRAGMA wal_checkpoint(TRUNCATE)");
      database.close();
      return statSync(path).size;
    },
  };
}

/** CPU ns and bytes for each token, the least of some rounds. */
export function measure(shape: Shape): Measurement[] {
  const folder = mkdtempSync(join(tmpdir(), "foretoken-journal-"));
  const idle: Sink = { began() {}, changed() {}, flush() {}, close: () => 0 };
  const kinds = ["none", "journal", "batches", "sqlite"] as const;
  const cost = new Map<string, { cpuNs: number; bytes: number }>();
  try {
    for (let round = 0; round < ROUNDS; round += 1) {
      for (const kind of kinds) {
        const path = join(folder, `${kind}${round}`);
        const sink =
          kind === "none"
            ? idle
            : kind === "sqlite"
              ? sqliteSink(path)
              : logSink(path, kind === "batches");
        const cpuNs = (1000 * grow(shape, sink)) / shape.tokens;
        const bytes = sink.close() / shape.tokens;
        const known = cost.get(kind);
        if (known === undefined || cpuNs < known.cpuNs) cost.set(kind, { cpuNs, bytes });
      }
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  const none = cost.get("none")?.cpuNs ?? 0;
  const ns = (kind: string): number => (cost.get(kind)?.cpuNs ?? 0) - none;
  const bytes = (kind: string): number => cost.get(kind)?.bytes ?? 0;
  const baselines = (of: (kind: string) => number): Record<string, number> => ({
    "a record for each batch": of("batches"),
    "bun:sqlite, WAL": of("sqlite"),
  });
  return [
    // 5 % of a core at a million tokens a second.
    {
      name: "CPU, a token",
      unit: "ns",
      value: ns("journal"),
      baselines: baselines(ns),
      target: 50,
    },
    { name: "disk, a token", unit: "bytes", value: bytes("journal"), baselines: baselines(bytes) },
  ];
}

if (import.meta.main) {
  const { values } = parseArgs({
    options: {
      tokens: { type: "string", default: "2000000" },
      requests: { type: "string", default: "4096" },
      "per-step": { type: "string", default: "3" },
      json: { type: "string" },
    },
  });
  const shape = {
    tokens: Number(values.tokens),
    requests: Number(values.requests),
    perStep: Number(values["per-step"]),
  };
  const measurements = measure(shape);
  console.log(ratioTable(measurements));
  if (values.json !== undefined) writeResults(values.json, measurements);
}
