// A journal of responses that grow, restart and finish in random steps, read back whole, cut anywhere, and damaged anywhere.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { type GroupId, weightEpoch, weightsId, workerId } from "../base/ids.ts";
import { RequestBuffer, type RolloutRequest } from "../request/buffer.ts";
import { JournalLog } from "./log.ts";
import { readJournal, type SavedRun } from "./read.ts";

const REQUESTS = 3;
const TOP = 2;

type Step = { readonly at: number } & (
  | { readonly kind: "chunk" | "restart" | "finish" | "flush" }
  | { readonly kind: "tokens"; readonly count: number }
);

const steps = fc.array(
  fc.record({
    at: fc.nat(REQUESTS - 1),
    kind: fc.constantFrom("chunk", "tokens", "tokens", "restart", "finish", "flush", "flush"),
    count: fc.integer({ min: 1, max: 40 }),
  }) as fc.Arbitrary<Step>,
  { maxLength: 40 },
);

interface Written {
  readonly bytes: Uint8Array;
  /** Ends of its frames, and what the responses were then. */
  readonly frames: readonly { readonly end: number; readonly state: string }[];
}

/** The content that must be read back of a request. */
function stateOf({ response }: RolloutRequest): unknown {
  const top = response.topLogprobs();
  return {
    tokens: [...response.tokens()],
    logprobs: [...response.logprobs()],
    top: top === null || top.tokens.length === 0 ? null : [[...top.tokens], [...top.logprobs]],
    chunks: response.chunks.map((chunk) => ({ ...chunk })),
    finish: response.finish,
  };
}

function savedState(run: SavedRun): string {
  const states = Array.from({ length: REQUESTS }, (_, stream) => {
    const saved = run.outputs.get(stream);
    const top = saved?.top ?? null;
    return {
      tokens: [...(saved?.tokens ?? [])],
      logprobs: [...(saved?.logprobs ?? [])],
      top: top === null || top.tokens.length === 0 ? null : [[...top.tokens], [...top.logprobs]],
      chunks: saved?.chunks ?? [],
      finish: saved?.finish ?? null,
    };
  });
  return JSON.stringify(states);
}

function write(script: readonly Step[], topLogprobs: number): Written {
  const buffer = new RequestBuffer();
  const group = buffer.add({
    groupId: "g" as GroupId,
    prompt: Int32Array.of(1),
    size: REQUESTS,
    sampling: samplingOf({ seed: 1, tokensMax: 10_000, topLogprobs }),
  });
  const log = new JournalLog();
  log.note({ format: 1 });
  for (const request of group.requests) log.follow(request, request.spec.sampleIndex);
  const parts: Uint8Array[] = [];
  const frames: { end: number; state: string }[] = [];
  const flush = () => {
    parts.push(log.take().slice());
    const end = parts.reduce((sum, part) => sum + part.length, 0);
    frames.push({ end, state: JSON.stringify(group.requests.map(stateOf)) });
  };
  let value = 0;
  for (const step of script) {
    const request = group.requests[step.at];
    if (request === undefined) continue;
    const { response } = request;
    if (step.kind === "flush") flush();
    else if (response.finish !== null) continue;
    else if (step.kind === "restart") {
      response.restart();
      log.changed(request);
    } else if (step.kind === "finish") {
      response.finish = "stop";
      log.finished(request);
    } else {
      if (step.kind === "chunk" || response.chunks.length === 0) {
        response.openChunk(workerId(step.at), weightEpoch(3), weightsId("f32:abc"));
      }
      if (step.kind !== "tokens") continue;
      const ids = Int32Array.from({ length: step.count }, () => value++);
      const rows = step.count * topLogprobs;
      const top = {
        count: topLogprobs,
        tokens: new Int32Array(rows).fill(value),
        logprobs: new Float32Array(rows).fill(-value / 3),
      };
      const logprobs = Float32Array.from(ids, (id) => -id / 7);
      response.append(response.length, ids, logprobs, topLogprobs > 0 ? top : null);
      log.changed(request);
    }
  }
  // A chunk without tokens is written with the next change.
  for (const request of group.requests) if (request.response.finish === null) log.changed(request);
  flush();
  return { bytes: Buffer.concat(parts), frames };
}

test("journal: what was flushed is read back, wherever a crash cuts the file", () => {
  fc.assert(
    fc.property(steps, fc.constantFrom(0, TOP), fc.nat(), (script, top, cut) => {
      const { bytes, frames } = write(script, top);
      const last = frames.at(-1);
      const whole = readJournal(bytes, "j");
      expect(whole?.bytes).toBe(bytes.length);
      expect(whole === null ? "" : savedState(whole)).toBe(last?.state ?? "");
      // Chunks that have no tokens yet are not in the frames before the last one: those are compared without.
      const at = cut % bytes.length;
      const torn = readJournal(bytes.subarray(0, at), "j");
      const end = frames.filter((frame) => frame.end <= at).at(-1)?.end ?? 0;
      expect(torn?.bytes ?? 0).toBe(end);
    }),
    { numRuns: 200 },
  );
});

test("journal: a wrong byte before the last frame is an error that names the record", () => {
  fc.assert(
    fc.property(steps, fc.nat(), fc.integer({ min: 1, max: 255 }), (script, position, flip) => {
      const { bytes, frames } = write([...script, { at: 0, kind: "flush" }], 0);
      const start = frames.at(-2)?.end ?? 0;
      const at = position % start;
      const wrong = Uint8Array.from(bytes);
      wrong[at] = (wrong[at] ?? 0) ^ flip;
      const record = frames.findIndex((frame) => frame.end > at);
      expect(() => readJournal(wrong, "j")).toThrow(`j: record ${record} at byte `);
    }),
    { numRuns: 200 },
  );
});

test("journal: a record that comes while a frame is written goes into the next one", () => {
  const log = new JournalLog();
  log.note({ format: 1 });
  const frame = log.take();
  const before = frame.slice();
  log.note({ type: "epoch", epoch: 4 });
  expect(frame).toEqual(before);
  expect(log.take().length).toBeGreaterThan(0);
});
