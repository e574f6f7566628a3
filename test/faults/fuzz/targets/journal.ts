// The journal of a rollout: bytes that a crash or a disk has damaged, and records with right checksums that no rollout
// could have written. It is read, or refused by name; what is read adds up.

import fc from "fast-check";
import { FRAME_HEADER_BYTES, sealFrame } from "../../../../src/core/journal/frame.ts";
import { lastWeights } from "../../../../src/core/journal/held-weights.ts";
import { readJournal } from "../../../../src/core/journal/read.ts";
import { RecordWriter } from "../../../../src/core/journal/records.ts";
import { OutputColumns } from "../../../../src/core/request/columns.ts";
import { savedRollout } from "../../../../src/server/rollouts/known.ts";
import type { Dice } from "../../attacks/settings.ts";
import { type FuzzTarget, parser, readOrRefused } from "../target.ts";
import { editedBytes, listInputs } from "../variations.ts";

type Write = (writer: RecordWriter) => void;

const stream = fc.nat({ max: 3 });
const small = fc.oneof(
  { arbitrary: fc.nat({ max: 6 }), weight: 12 },
  { arbitrary: fc.constantFrom(-1, 0.5, 0xffffffff, 2 ** 53, null, "0", {}), weight: 1 },
);
const header = fc.oneof(
  {
    arbitrary: fc.constant({
      format: 1,
      id: "r",
      hash: "h",
      plan: { groups: [{ id: "a", prompt: [1, 2], n: 2 }] },
      draws: [[{ hi: 1, lo: 2 }]],
      epoch: 0,
      version: "0",
    }),
    weight: 8,
  },
  // Of `foretoken rollout --journal`.
  { arbitrary: fc.constant({ format: 1, job: "digest" }), weight: 2 },
  { arbitrary: fc.jsonValue({ maxDepth: 2 }).map((value) => Object(value) as object), weight: 1 },
);
const note = (record: fc.Arbitrary<object>): fc.Arbitrary<Write> =>
  record.map((one) => (writer) => writer.json(one));
const output = fc.tuple(stream, fc.nat({ max: 8 }), fc.nat({ max: 3 }), fc.nat({ max: 4 })).map(
  ([number, length, alternatives, from]): Write =>
    (writer) => {
      if (from >= length) {
        writer.restart(number);
        return;
      }
      const columns = new OutputColumns(Number.POSITIVE_INFINITY, alternatives);
      const rows = length * alternatives;
      const top = {
        count: alternatives,
        tokens: new Int32Array(rows),
        logprobs: new Float32Array(rows),
      };
      const tokens = Int32Array.from({ length }, (_, i) => i);
      columns.appendFrom(tokens, new Float32Array(length), alternatives === 0 ? null : top, 0);
      writer.output(number, columns, from);
    },
);
const record: fc.Arbitrary<Write> = fc.oneof(
  { arbitrary: output, weight: 4 },
  note(
    fc.record({
      type: fc.constant("chunk"),
      stream: small,
      worker: small,
      epoch: small,
      weights: fc.constantFrom(null, "q8_0-1"),
      offset: small,
    }),
  ),
  note(
    fc.record({
      type: fc.constant("finish"),
      stream: small,
      reason: fc.constantFrom("stop", "length", "abort", "other"),
      refusal: fc.constantFrom(null, { status: 400, message: "m" }, 7),
    }),
  ),
  note(fc.record({ type: fc.constant("epoch"), epoch: small, version: small })),
  note(fc.record({ type: fc.constantFrom("chunk", "unknown", "__proto__") })),
);

function frameOf(writes: readonly Write[]): Uint8Array {
  const writer = new RecordWriter();
  for (const write of writes) write(writer);
  return writer.take().slice();
}

/** Edited, and sealed again or not. */
function editedFrame(base: Uint8Array, other: Uint8Array, dice: Dice): Uint8Array {
  const frame = editedBytes(base, other, dice);
  if (frame.length >= FRAME_HEADER_BYTES && dice.below(3) > 0) sealFrame(frame);
  return frame;
}
const frames = fc.array(fc.array(record, { minLength: 1, maxLength: 3 }).map(frameOf), {
  maxLength: 4,
});
const journal = listInputs(
  fc.tuple(header, frames).map(([one, rest]) => [frameOf([(writer) => writer.json(one)]), ...rest]),
  editedFrame,
);

async function read(frames: readonly Uint8Array[]): Promise<void> {
  const bytes = new Uint8Array(Buffer.concat(frames));
  const run = await readOrRefused(["journal_damaged"], () => readJournal(bytes, "input"));
  if (run === null) return;
  if (run.bytes > bytes.length) throw new Error(`${run.bytes} of ${bytes.length} bytes`);
  for (const [number, { tokens, logprobs, chunks }] of run.outputs) {
    const inChunks = chunks.reduce((sum, one) => sum + one.tokens, chunks[0]?.offset ?? 0);
    const isRight = tokens.length === logprobs.length && chunks.every((one) => one.tokens >= 0);
    if (isRight && (chunks.length === 0 || inChunks === tokens.length)) continue;
    throw new Error(`stream ${number}: ${tokens.length} tokens, ${inChunks} in its chunks`);
  }
  await readOrRefused(["journal_damaged", "invalid_config"], () =>
    lastWeights([savedRollout(run)]),
  );
}

export const journalTargets: readonly FuzzTarget[] = [parser("journal", journal, read)];
