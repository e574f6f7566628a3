// KV that does not fit is left out on either side: it is recomputed, and nothing else suffers.

import { expect, test } from "bun:test";
import { newSimulated, newSpec, runOf } from "../../../test/suite/forwarding-suite.ts";
import type { WorkerEvent } from "../../core/rollout/worker.ts";
import { HostSession } from "./host-session.ts";
import { LINK_LIMITS } from "./limits.ts";
import type { WireCommand } from "./message.ts";
import { SidecarState } from "./sidecar-state.ts";

const KV_BYTES_MAX = 1000;

const kv = (bytes: number) => ({ tokens: 3, bytes: new ArrayBuffer(bytes) });

const kvOf = (commands: readonly WireCommand[]) =>
  commands.map((command) =>
    command.kind === "run" && command.kv !== null && "bytes" in command.kv
      ? command.kv.bytes.byteLength
      : undefined,
  );

test("commands: KV beyond the room that is left is not sent, and the run is", () => {
  const state = new SidecarState(LINK_LIMITS, 1000, KV_BYTES_MAX);
  const runs = [1, 2, 3].map((id) => runOf(newSpec(id), { from: 1, kv: kv(400) }));
  expect(kvOf(state.commands(runs, 1000))).toEqual([400, 400, undefined]);
});

test("commands: KV beyond what the host takes of one message is not sent, and the run is", () => {
  const state = new SidecarState({ ...LINK_LIMITS, messageBytesMax: 100_000 }, 1000, KV_BYTES_MAX);
  const runs = [30_000, 90_000].map((bytes, id) => runOf(newSpec(id), { from: 1, kv: kv(bytes) }));
  expect(kvOf(state.commands(runs, 1_000_000))).toEqual([30_000, undefined]);
});

test("events: exported KV beyond the room that is left is sent as none", () => {
  const session = new HostSession(newSimulated(), LINK_LIMITS, 1000);
  const events = [1, 2].map(
    (id): WorkerEvent => ({ kind: "exported", requestId: newSpec(id).requestId, kv: kv(600) }),
  );
  const wire = session.events(events, 1000, () => false);
  expect(wire).toEqual([
    { kind: "exported", requestId: newSpec(1).requestId, kv: kv(600) },
    { kind: "exported", requestId: newSpec(2).requestId, kv: null },
  ]);
});
