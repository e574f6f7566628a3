// The sidecar's and the host's idea of what the host has: with tables that hold hardly anything, whatever
// runs, moves and comes late, every run reaches the worker with its whole prompt and output.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { newSimulated, newSpec, runOf } from "../../../test/suite/worker-suite.ts";
import type { RequestId } from "../../core/base/ids.ts";
import type { WorkerCommand, WorkerEvent } from "../../core/rollout/worker.ts";
import { HostSession } from "./host-session.ts";
import type { WireCommand, WireEvent } from "./message.ts";
import { SidecarState } from "./sidecar-state.ts";

const LIMITS = {
  messageBytesMax: 1_000_000,
  kvBytesMax: 1_000_000,
  promptTokensMax: 12,
  outputTokensMax: 40,
  requestsMax: 4,
};
const REQUESTS = 4;
const TOKENS_MAX = 32;
const CHUNK_TOKENS = 8;

const PROMPTS = [3, 5, 7, 20].map((length) => new Int32Array(length).fill(length));

const step = fc.oneof(
  {
    arbitrary: fc.record({
      kind: fc.constant("run" as const),
      id: fc.nat({ max: REQUESTS - 1 }),
      prompt: fc.nat({ max: PROMPTS.length - 1 }),
      /** The output as the rollout has it: other tokens after a restart, more after a move. */
      length: fc.nat({ max: TOKENS_MAX - 1 }),
      life: fc.nat({ max: 1 }),
      goesOn: fc.boolean(),
    }),
    weight: 3,
  },
  fc.record({
    kind: fc.constant("tokens" as const),
    id: fc.nat({ max: REQUESTS - 1 }),
    count: fc.nat({ max: 9 }),
  }),
  fc.record({
    kind: fc.constant("done" as const),
    id: fc.nat({ max: REQUESTS - 1 }),
    isFinished: fc.boolean(),
  }),
  fc.record({
    kind: fc.constantFrom("release" as const, "export" as const),
    id: fc.nat({ max: REQUESTS - 1 }),
  }),
  {
    arbitrary: fc.record({ kind: fc.constant("hear" as const), count: fc.nat({ max: 5 }) }),
    weight: 3,
  },
);

const tokenAt = (id: number, life: number, position: number) =>
  (id * 101 + life * 53 + position) % 1000;

test("session: every run reaches the worker whole, whatever was forgotten, moved or late", () => {
  let forgotten = 0;
  let saved = 0;
  fc.assert(
    fc.property(fc.array(step, { minLength: 30, maxLength: 80, size: "max" }), (steps) => {
      const worker = newSimulated();
      const sidecar = new SidecarState(LIMITS, 1000, LIMITS.kvBytesMax);
      const host = new HostSession(worker, LIMITS, 1000);
      /** Events that are on their way. */
      const late: WireEvent[][] = [];
      /** What the worker runs: the position it is at, and whose tokens it makes. */
      const running = new Map<number, { position: number; life: number; chunkEnd: number }>();
      /** Where a request stands after its last chunk. */
      const parked = new Map<number, { position: number; life: number }>();
      const command = (wanted: WorkerCommand) => {
        const wire: WireCommand[] = sidecar.commands([wanted], 1000);
        for (const one of wire) {
          if (one.kind === "forget") forgotten += one.promptIds.length + one.requestIds.length;
          if (one.kind === "run") saved += one.outputFrom;
        }
        const taken = host.commands(wire);
        expect(taken.kind).toBe("ok");
        if (taken.kind === "ok") expect(taken.commands.at(-1)).toEqual(wanted);
      };
      const say = (event: WorkerEvent) => late.push(host.events([event], 1000, () => false));
      const make = (
        requestId: RequestId,
        run: { position: number; life: number; chunkEnd: number },
        wanted: number,
      ) => {
        const offset = run.position;
        const count = Math.min(wanted, run.chunkEnd - offset);
        const tokens = Int32Array.from({ length: count }, (_, i) =>
          tokenAt(requestId, run.life, offset + i),
        );
        run.position += count;
        const logprobs = new Float32Array(count);
        say({ kind: "tokens", requestId, offset, tokens, logprobs, top: null });
      };
      for (const one of steps) {
        if (one.kind === "hear") {
          for (const events of late.splice(0, one.count)) {
            expect(sidecar.events(events, true).kind).toBe("ok");
          }
          continue;
        }
        const spec = { ...newSpec(one.id), prompt: PROMPTS[one.id % PROMPTS.length] as Int32Array };
        const { requestId } = spec;
        const current = running.get(one.id);
        if (one.kind === "run" && current === undefined) {
          const prompt = PROMPTS[one.prompt] as Int32Array;
          const before = one.goesOn ? parked.get(one.id) : undefined;
          const life = before?.life ?? one.life;
          const position = before?.position ?? one.length;
          const output = Int32Array.from({ length: position }, (_, i) => tokenAt(one.id, life, i));
          const chunkEnd = Math.min(TOKENS_MAX, position + CHUNK_TOKENS);
          running.set(one.id, { position, life, chunkEnd });
          const run = runOf({ ...spec, prompt }, { chunkTokens: CHUNK_TOKENS });
          command({ ...run, output } as WorkerCommand);
        } else if (one.kind === "tokens" && current !== undefined) {
          make(requestId, current, one.count);
        } else if (one.kind === "done" && current !== undefined) {
          running.delete(one.id);
          if (!one.isFinished) make(requestId, current, CHUNK_TOKENS);
          const isLast = current.position === TOKENS_MAX;
          if (isLast || one.isFinished) parked.delete(one.id);
          else parked.set(one.id, current);
          const finish = isLast ? "length" : one.isFinished ? "stop" : null;
          say({ kind: "chunk_done", requestId, finish });
          // The rollout runs a request again only when it has heard that its chunk is done.
          for (const events of late.splice(0)) expect(sidecar.events(events, true).kind).toBe("ok");
        } else if (one.kind === "release") {
          running.delete(one.id);
          command({ kind: "release", requestId });
        } else if (one.kind === "export" && current === undefined) {
          command({ kind: "export", requestId });
          say({ kind: "exported", requestId, kv: null });
        }
      }
    }),
    { numRuns: 1500 },
  );
  // The check is of use only if tables did run over, and outputs were not sent again.
  expect(forgotten).toBeGreaterThan(100);
  expect(saved).toBeGreaterThan(100);
});
