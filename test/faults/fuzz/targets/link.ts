// The worker link, both ends: messages with all that they change. What a peer sends is decoded,
// then obeyed or refused by the state of the session; what is obeyed reaches a worker.

import fc from "fast-check";
import { weightEpoch, workerId } from "../../../../src/core/base/ids.ts";
import type { WorkerCommand } from "../../../../src/core/rollout/worker.ts";
import {
  decodeHostMessage,
  decodeSidecarMessage,
  encodeHostMessage,
  encodeSidecarMessage,
} from "../../../../src/engines/remote/codec.ts";
import { HostSession, Refused } from "../../../../src/engines/remote/host-session.ts";
import { SidecarState } from "../../../../src/engines/remote/sidecar-state.ts";
import { hostMessage, sidecarMessage } from "../../../suite/link-messages.ts";
import { newSpec, runOf } from "../../../suite/simulated-runs.ts";
import { SimulatedWorker } from "../../simulated/worker.ts";
import { type FuzzTarget, parser } from "../target.ts";
import { editedBytes, listInputs } from "../variations.ts";

const VOCABULARY = 1000;
/** Small: what goes beyond them is drawn often. */
const LIMITS = { messageBytesMax: 2 ** 16, kvBytesMax: 2 ** 12, requestsMax: 4 };
const several = <T>(one: fc.Arbitrary<T>) => fc.array(one, { minLength: 1, maxLength: 6 });

function newWorker(): SimulatedWorker {
  const worker = new SimulatedWorker({
    workerId: workerId(0),
    capacity: { slots: 4, kvTokens: 4_000, contextTokens: 1_000, kvBytesPerToken: 8 },
    epoch: weightEpoch(0),
    lengthOf: () => 3,
  });
  worker.listen(() => {});
  return worker;
}

const newState = () => new SidecarState(VOCABULARY, LIMITS.kvBytesMax);

/** A run that a host accepts, so that what follows has something to refer to. */
const started = (id: number) =>
  encodeSidecarMessage({
    kind: "commands",
    commands: newState().commands([runOf(newSpec(id), { chunkTokens: 4 })], () => false),
  });

function asHost(messages: readonly Uint8Array[]): void {
  const worker = newWorker();
  const session = new HostSession(LIMITS);
  for (const bytes of messages) {
    const decoded = decodeSidecarMessage(bytes);
    if (decoded.kind !== "ok") return;
    const { message } = decoded;
    if (message.kind === "kv_part" && session.kvPart(message.part) !== null) return;
    if (message.kind !== "commands") continue;
    let taken: WorkerCommand[];
    try {
      taken = session.commands(message.commands);
    } catch (error) {
      if (error instanceof Refused) return;
      throw error;
    }
    // A simulated worker has no weights to load.
    worker.send(taken.filter(({ kind }) => kind === "run" || kind === "release"));
    worker.step();
  }
  worker.send(session.ending().filter(({ kind }) => kind === "release"));
}

function asSidecar(messages: readonly Uint8Array[]): void {
  const state = newState();
  state.commands([runOf(newSpec(0), { chunkTokens: 4 })], () => false);
  for (const bytes of messages) {
    const decoded = decodeHostMessage(bytes);
    if (decoded.kind !== "ok") return;
    const { message } = decoded;
    if (message.kind === "kv_part" && state.kvPart(message.part) !== null) return;
    if (message.kind !== "events") continue;
    if (state.events(message.events, true).kind === "invalid") return;
  }
}

const first = fc.nat({ max: 1 }).map(started);

export const linkTargets: readonly FuzzTarget[] = [
  parser(
    "link host",
    listInputs(
      fc
        .tuple(first, several(sidecarMessage.map(encodeSidecarMessage)))
        .map(([one, rest]) => [one, ...rest]),
      editedBytes,
    ),
    asHost,
  ),
  parser(
    "link sidecar",
    listInputs(several(hostMessage.map(encodeHostMessage)), editedBytes),
    asSidecar,
  ),
];
