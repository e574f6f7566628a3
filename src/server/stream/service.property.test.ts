// Whatever the order of tokens, subscriptions, cuts, resumptions, slow reading, deaths of workers and
// changes of weights: a client has exactly the response's tokens, once, in order.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { kind, weighted } from "../../../test/suite/arbitraries.ts";
import { Bed } from "../../../test/suite/sidecar-bed.ts";
import { FakeSocket, Reader, readFrame } from "../../../test/suite/stream-client.ts";
import { fold32 } from "../../core/base/hash.ts";
import { weightEpoch } from "../../core/base/ids.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";
import { CompletedGroups } from "../completed-groups.ts";
import { StreamService } from "./service.ts";

/** `isEarly`: by the number or name of what may not be there yet. */
interface How {
  readonly what: "request" | "group" | "all";
  readonly snapshot: boolean;
  readonly isEarly: boolean;
}

type Action =
  | { kind: "step" }
  | { kind: "ask"; prompt: number; n: number }
  | { kind: "follow"; client: number; how: How; which: number }
  | { kind: "cut"; client: number }
  | { kind: "reading"; client: number; is: boolean }
  | { kind: "kill" }
  | { kind: "abort"; which: number }
  | { kind: "advance" };

const CLIENTS = 3;
/** The name that all groups have from their clients. */
const NAME = "p";
const EARLY = (requestId: number) => ({ requestId, groupId: NAME });
const client = fc.nat({ max: CLIENTS - 1 });
const how: fc.Arbitrary<How> = fc.record({
  what: fc.constantFrom("request", "group", "all"),
  snapshot: fc.boolean(),
  isEarly: fc.boolean(),
});
const action: fc.Arbitrary<Action> = fc.oneof(
  weighted(6, { kind: kind("step") }),
  weighted(3, { kind: kind("ask"), prompt: fc.nat(3), n: fc.integer({ min: 1, max: 4 }) }),
  weighted(5, { kind: kind("follow"), client, how, which: fc.nat() }),
  weighted(2, { kind: kind("cut"), client }),
  weighted(2, { kind: kind("reading"), client, is: fc.boolean() }),
  weighted(1, { kind: kind("kill") }),
  weighted(1, { kind: kind("abort"), which: fc.nat() }),
  weighted(1, { kind: kind("advance") }),
);

/** One connection after another; what it has of a response outlives them. */
class Follower {
  readonly #service: StreamService;
  readonly #requests: readonly RolloutRequest[];
  socket: FakeSocket;
  /** Readers by subscription: filters overlap, and each has its own guarantees. */
  readers = new Map<string, Reader>();
  /** Whether a subscription began with a snapshot, and how many requests there were. */
  readonly begun = new Map<string, { readonly snapshot: boolean; readonly at: number }>();
  /** Subscriptions asked for whose answers are not read yet: a second one could begin where the first has ended. */
  readonly #unanswered = new Set<string>();

  constructor(service: StreamService, requests: readonly RolloutRequest[]) {
    this.#service = service;
    this.#requests = requests;
    this.socket = this.#connect();
  }

  #connect(): FakeSocket {
    const socket = new FakeSocket((data) => {
      const frame = readFrame(data);
      const reader = this.readers.get(frame.subscription) ?? new Reader();
      this.readers.set(frame.subscription, reader);
      this.#unanswered.delete(frame.subscription);
      reader.read(frame);
    });
    this.#service.open(socket);
    return socket;
  }

  follow({ what, snapshot, isEarly }: How, which: number): void {
    const known = this.#requests[which % Math.max(1, this.#requests.length)]?.spec;
    const early = this.#requests.length + (which % 4);
    const { requestId, groupId } = isEarly || known === undefined ? EARLY(early) : known;
    const filter = {
      request: { request: requestId },
      group: { group: groupId },
      all: { all: true },
    };
    const key = { request: `request:${requestId}`, group: `group:${groupId}`, all: "all" }[what];
    if (this.#isSubscribed(key) || this.#unanswered.has(key)) return;
    const had = this.readers.get(key)?.known.get(requestId);
    const isResumed = what === "request" && had !== undefined && had.finish === null;
    const more = isResumed ? { offset: had.tokens.length, attempt: had.attempt } : { snapshot };
    if (!isResumed) {
      this.readers.delete(key);
      this.begun.set(key, { snapshot, at: this.#requests.length });
    }
    this.#unanswered.add(key);
    this.#service.message(this.socket, JSON.stringify({ subscribe: { ...filter[what], ...more } }));
  }

  #isSubscribed(key: string): boolean {
    const states = this.readers.get(key)?.frames.flatMap(({ state }) => state ?? []) ?? [];
    return states.at(-1) === "subscribed";
  }

  cut(): void {
    this.#service.close(this.socket);
    this.#unanswered.clear();
    // A cut connection has no subscriptions; requests are resumed, the others begin anew.
    for (const [key, reader] of this.readers) {
      if (!key.startsWith("request:")) this.readers.delete(key);
      else reader.frames.length = 0;
    }
    this.socket = this.#connect();
  }

  reading(is: boolean): void {
    this.socket.isReading = is;
    if (!is) return;
    this.socket.readAll();
    this.#service.drain(this.socket);
  }
}

async function act(
  one: Action,
  world: { bed: Bed; requests: RolloutRequest[]; followers: readonly Follower[] },
): Promise<void> {
  const { bed, requests, followers } = world;
  switch (one.kind) {
    case "step":
      return await bed.step();
    case "ask":
      requests.push(...bed.generate([one.prompt, 1, 2], one.n, { group: NAME }));
      return;
    case "follow":
      return followers[one.client]?.follow(one.how, one.which);
    case "cut":
      return followers[one.client]?.cut();
    case "reading":
      return followers[one.client]?.reading(one.is);
    case "kill":
      bed.addWorker();
      bed.workers.find((worker) => !worker.isDead)?.kill();
      return;
    case "abort": {
      const request = requests[one.which % Math.max(1, requests.length)];
      if (request !== undefined) bed.sidecar.rollout.end(request, "abort");
      return;
    }
    case "advance":
      bed.sidecar.advance(weightEpoch(bed.sidecar.rollout.epoch + 1));
      return;
  }
}

test("stream: every client gets exactly the response's tokens, once, in order", async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(action, { minLength: 5, maxLength: 60 }),
      fc.boolean(),
      fc.nat(),
      async (actions, isWhole, seed) => {
        const lengthOf = ({ requestId }: { requestId: number }) =>
          1 + (fold32(seed, requestId) % 40);
        const bed = new Bed({ workers: 2, lengthOf, isWhole });
        const service = new StreamService({
          sidecar: bed.sidecar,
          completed: new CompletedGroups(bed.sidecar, 2 ** 24),
          random: () => seed,
          every: () => () => {},
        });
        const requests: RolloutRequest[] = [];
        const followers = Array.from({ length: CLIENTS }, () => new Follower(service, requests));
        for (const one of actions) await act(one, { bed, requests, followers });
        await bed.finish();
        let followed = 0;
        for (const follower of followers) {
          follower.reading(true);
          for (const [key, reader] of follower.readers) {
            const states = reader.frames.flatMap(({ state }) => state ?? []);
            if (states[0] !== "subscribed") continue;
            const { snapshot = true, at = 0 } = follower.begun.get(key) ?? {};
            if ((key === "all" || key === `group:${NAME}`) && states.length === 1) {
              for (const { spec } of requests.slice(at)) {
                expect(reader.known.has(spec.requestId)).toBe(true);
              }
            }
            for (const [id, known] of reader.known) {
              const request = requests.find(({ spec }) => spec.requestId === id);
              const tokens = [...(request?.response.tokens() ?? [])];
              const from = known.tokens.lastIndexOf(-1) + 1;
              expect(known.tokens.slice(from)).toEqual(tokens.slice(from));
              expect(known.tokens.length).toBe(tokens.length);
              expect(known.finish as string | null).toBe(request?.response.finish ?? null);
              if (snapshot || id >= at) expect(from).toBe(0);
              followed += 1;
            }
          }
          expect(follower.socket.closed).toBeNull();
        }
        fc.pre(followed > 0);
      },
    ),
    { numRuns: 150 },
  );
});
