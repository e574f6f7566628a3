import { expect, test } from "bun:test";
import { encodeClientMessage } from "../../test/suite/draft-client.ts";
import { groupId, weightEpoch } from "../core/base/ids.ts";
import { LOG_TOKENS_MAX, SAMPLES_MAX } from "../core/draft/service/limits.ts";
import type { ClientMessage, SampleDelta } from "../core/draft/service/message.ts";
import { decodeClientMessage } from "./draft-codec.ts";

const DELTA: SampleDelta = { sampleIndex: 0, offset: 0, tokens: Int32Array.of(1) };

/** The problem that the checks report for an update with this delta. */
function problemOf(delta: Partial<SampleDelta>): string {
  const groups = [{ groupId: groupId("a"), deltas: [{ ...DELTA, ...delta }] }];
  return problem({ kind: "update", epoch: weightEpoch(0), groups });
}

function problem(message: ClientMessage): string {
  const decoded = decodeClientMessage(encodeClientMessage(message));
  return decoded.kind === "ok" ? "ok" : `${decoded.kind}: ${decoded.problem}`;
}

test("decode: an empty frame has no body", () => {
  const wanted = { kind: "invalid_message", problem: "the frame has no body" } as const;
  expect(decodeClientMessage(new Uint8Array(0))).toEqual(wanted);
});

test("decode: names the field that is out of range", () => {
  expect(problemOf({})).toBe("ok");
  expect(problemOf({ tokens: Int32Array.of(3, -1) })).toContain("tokens[1] is -1, below 0");
  expect(problemOf({ tokens: new Int32Array(0) })).toContain("tokens is empty");
  expect(problemOf({ sampleIndex: SAMPLES_MAX })).toContain(`sampleIndex is ${SAMPLES_MAX}`);
  expect(problemOf({ offset: LOG_TOKENS_MAX })).toContain(`offset is ${LOG_TOKENS_MAX}`);
});

test("decode: a lifetime of none and a name too long are refused", () => {
  const register = {
    kind: "register_group",
    epoch: weightEpoch(0),
    groupId: groupId("a"),
    ttlMs: 5,
    prompt: new Int32Array(0),
  } as const;
  expect(problem(register)).toBe("ok");
  expect(problem({ ...register, ttlMs: 0 })).toContain("ttlMs is 0");
  expect(problem({ ...register, groupId: groupId("x".repeat(300)) })).toContain("group_id");
});

test("decode: tokens cut within a token are refused", () => {
  // Update { groups: [{ group_id: "a", deltas: [{ tokens: 3 bytes }] }] }
  const delta = [0x1a, 3, 1, 2, 3];
  const group = [0x0a, 1, 0x61, 0x12, delta.length, ...delta];
  const update = [0x12, group.length, ...group];
  const frame = Uint8Array.from([0x1a, update.length, ...update]);
  expect(decodeClientMessage(frame)).toMatchObject({ problem: "tokens ends within a token" });
});
