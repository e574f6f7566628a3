// Clients of /v1/stream, and engines on /v1/draft: a socket, some frames, and the end. Whatever comes,
// the socket ends with a code that names the peer's fault, never with the server's own.

import fc from "fast-check";
import { groupId, weightEpoch } from "../../../../src/core/base/ids.ts";
import { charactersOf } from "../../../suite/characters.ts";
import { encodeClientMessage } from "../../../suite/draft-client.ts";
import { draftMessages } from "../../../suite/draft-messages.ts";
import type { Dice } from "../../attacks/settings.ts";
import { anyJson, jsonOf, PLAIN, type Schema } from "../json-text.ts";
import { SidecarBed } from "../sidecar-bed.ts";
import { type FuzzTarget, target } from "../target.ts";
import { editedBytes, editedText, listInputs } from "../variations.ts";

type Frame = string | Uint8Array;
type Frames = readonly Frame[];

const INTERNAL = 1011;
const DEPTH = 200_000;
/** Nested beyond the stack of a parser. */
const DEEP: Frames = [`{"subscribe":${"[".repeat(DEPTH)}${"]".repeat(DEPTH)}}`];

/** A response that streams can name: request 0 of group "g". */
async function respond(bed: SidecarBed): Promise<void> {
  const body = JSON.stringify({ prompt: [1, 2], max_tokens: 4, group_id: "g" });
  const answer = await bed.request("/v1/completions", { method: "POST", body });
  await answer.text();
}

function socketTarget(name: string, path: string, frames: fc.Arbitrary<Frames>): FuzzTarget {
  return target(name, async () => {
    const bed = await SidecarBed.open();
    await respond(bed);
    return {
      inputs: { ...listInputs(frames, editedFrame), seeds: [DEEP] },
      take: async (input: Frames) => {
        const closed = await bed.talk(path, input);
        if (closed?.code === INTERNAL) throw new Error(`closed with ${INTERNAL}: ${closed.reason}`);
        if (input === DEEP && closed === null) throw new Error("it goes on");
        bed.check();
      },
      close: () => bed.close(),
    };
  });
}

const encoder = new TextEncoder();

/** A frame of text stays one. */
function editedFrame(base: Frame, other: Frame, dice: Dice): Frame {
  const second = typeof other === "string" ? encoder.encode(other) : other;
  if (typeof base !== "string") return editedBytes(base, second, dice);
  return new TextDecoder().decode(editedText(encoder.encode(base), second, dice));
}

const uint32 = fc.oneof(
  fc.nat({ max: 4 }),
  fc.constantFrom(0x7fffffff, 0xffffffff),
  fc.integer({ min: 0, max: 0xffffffff }),
);
const name = fc.oneof(
  fc.constantFrom("g", "h", "x".repeat(1024), "y".repeat(1025)),
  charactersOf({ maxLength: 12 }),
);
const filter = fc.oneof(
  fc.record({ request: uint32 }),
  fc.record({ group: name }),
  fc.constant({ all: true }),
  fc.constant({ progress: true }),
  fc.constant({}),
);
const resumed = fc.record({
  server: uint32,
  requests: uint32,
  have: fc.array(fc.tuple(uint32, uint32, uint32), { maxLength: 4 }),
});
const subscription = fc
  .tuple(filter, fc.record({ snapshot: fc.boolean(), resumed }, { requiredKeys: [] }))
  .map(([of, more]) => ({ ...of, ...more }));
const streamMessage = fc.oneof({
  arbitrary: subscription.map((subscribe) => ({ subscribe })),
  weight: 4,
});

const FILTER: Schema = {
  type: "object",
  properties: {
    request: { type: "integer" },
    group: { type: "string" },
    all: { const: true },
    progress: { const: true },
    snapshot: { type: "boolean" },
    resumed: { type: "object" },
  },
};
const MESSAGE: Schema = { type: "object", properties: { subscribe: FILTER } };

const several = <T>(one: fc.Arbitrary<T>) => fc.array(one, { minLength: 1, maxLength: 6 });

const jsonFrames = several(
  fc.oneof(
    { arbitrary: streamMessage.map((message) => JSON.stringify(message)), weight: 5 },
    { arbitrary: jsonOf(MESSAGE, PLAIN), weight: 3 },
    { arbitrary: anyJson, weight: 1 },
    { arbitrary: charactersOf({ maxLength: 20 }), weight: 1 },
    { arbitrary: fc.uint8Array({ maxLength: 20 }), weight: 1 },
  ),
);

const EPOCH = weightEpoch(0);
const epoch = fc.oneof(
  { arbitrary: fc.constant(EPOCH), weight: 9 },
  { arbitrary: uint32.map(weightEpoch), weight: 1 },
);
const group = fc
  .oneof(fc.constantFrom("a", "b"), name)
  .filter((one) => one !== "")
  .map(groupId);
const token = fc.oneof(fc.nat({ max: 5 }), fc.integer({ min: 0, max: 0x7fffffff }));
const place = fc.oneof(fc.nat({ max: 6 }), fc.integer({ min: 0, max: 2 ** 22 }));
const draftMessage = draftMessages({
  ...{ epoch, groupId: group, sampleIndex: place, have: place },
  tokens: () => fc.array(token, { maxLength: 12 }).map((list) => Int32Array.from(list)),
});
const hello = fc
  .record({
    kind: fc.constant("hello" as const),
    protocolVersion: fc.oneof(
      { arbitrary: fc.constant(1), weight: 30 },
      { arbitrary: uint32, weight: 1 },
    ),
    engine: fc.oneof(fc.constant("http://e:1"), charactersOf({ maxLength: 8 })),
  })
  .map(encodeClientMessage);
const draftFrames = fc
  .tuple(hello, several(draftMessage.map(encodeClientMessage)), fc.nat({ max: 19 }))
  .map(([first, rest, skip]) => (skip === 0 ? rest : [first, ...rest]));

export const socketTargets: readonly FuzzTarget[] = [
  socketTarget("stream", "/v1/stream", jsonFrames),
  socketTarget("draft", "/v1/draft", draftFrames),
];
