// Replicas converge: whatever order, repetition, loss, restart or eviction the messages of several
// engines meet, in the end every engine drafts what a replica would that was handed the logs directly.

import { expect, test } from "bun:test";
import fc from "fast-check";
import {
  draftsOf,
  expectedDrafts,
  newClient,
  newReplica,
  type TestClient,
} from "../../../test/suite/draft-service-suite.ts";
import { present } from "../../base/assert.ts";
import { ManualClock } from "../../base/clock.ts";
import { groupId } from "../../base/ids.ts";
import type { Dial, Link, LinkEvents } from "./link.ts";
import type { ClientMessage, ServerMessage } from "./message.ts";
import { DraftServer } from "./server.ts";
import { DraftSession } from "./session.ts";

const CLIENTS = 3;
const SAMPLES = 3;
const TOKENS_MAX = 120;
const TTL_MS = 3_600_000;
const GROUPS = ["x", "y"].map(groupId);
const PROMPT = Int32Array.of(4, 5);
const LIMITS = {
  reregisterMs: 2,
  restoreMs: 3,
  refusedMs: 5,
  replyMsMax: 20,
  inFlightMax: 3,
  windowTokens: 64,
};

/** Two servers whose links hold messages back until told to pass one on, and may break at any. */
class Network {
  readonly clock = new ManualClock(500);
  readonly #servers: DraftServer[] = [];
  #links: SlowLink[] = [];
  #instanceId = 0;

  constructor(count: number) {
    for (let i = 0; i < count; i += 1) this.restart(i);
  }

  dial(index: number): Dial {
    return (events) => {
      const link = new SlowLink(present(this.#servers[index], "a server"), index, events);
      this.#links.push(link);
      return link;
    };
  }

  /** Empty, and just large enough for both groups at their longest. */
  restart(index: number): void {
    this.#instanceId += 1;
    const limits = { windowTokens: 24, frameBytesMax: 1024, bytesMax: 9000 };
    this.#servers[index] = new DraftServer({
      clock: this.clock,
      instanceId: this.#instanceId,
      limits,
    });
    for (const link of this.#links) if (link.index === index) link.break();
    this.#links = this.#links.filter((link) => link.isOpen);
  }

  /** One message of one link, and its answer, or the end of the link. */
  pass(turn: number, isCut: boolean): void {
    this.#links = this.#links.filter((link) => link.isOpen);
    const link = this.#links[turn % Math.max(this.#links.length, 1)];
    if (link === undefined) return;
    if (isCut) link.break();
    else link.pass();
  }

  passAll(): void {
    for (const link of this.#links) while (link.isBusy) link.pass();
  }

  evict(index: number): void {
    const server = present(this.#servers[index], "a server");
    server.register({
      kind: "register_group",
      epoch: server.epoch,
      groupId: groupId("large"),
      ttlMs: 1,
      prompt: new Int32Array(2000),
    });
  }
}

class SlowLink implements Link {
  readonly index: number;
  readonly #session: DraftSession;
  readonly #events: LinkEvents;
  readonly #requests: ClientMessage[] = [];
  readonly #answers: ServerMessage[] = [];
  #isGreeted = false;
  isOpen = true;

  constructor(server: DraftServer, index: number, events: LinkEvents) {
    this.#session = new DraftSession(server);
    this.index = index;
    this.#events = events;
  }

  get isBusy(): boolean {
    return this.isOpen && (!this.#isGreeted || this.#requests.length + this.#answers.length > 0);
  }

  send(message: ClientMessage): "sent" | "full" | "closed" {
    if (!this.isOpen) return "closed";
    if (this.#requests.length >= 2) return "full";
    this.#requests.push(message);
    return "sent";
  }

  pass(): void {
    if (!this.#isGreeted) {
      this.#isGreeted = true;
      this.#events.opened();
      return;
    }
    const answer = this.#answers.shift();
    if (answer !== undefined) {
      this.#events.received(answer);
      return;
    }
    const request = this.#requests.shift();
    if (request === undefined) return;
    const result = this.#session.receive(request);
    if (result.kind === "reply") this.#answers.push(result.message);
    else this.break();
  }

  break(): void {
    if (!this.isOpen) return;
    this.isOpen = false;
    this.#events.closed("broken");
  }

  close(): void {
    this.isOpen = false;
  }
}

const move = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({
      kind: fc.constant("write" as const),
      client: fc.nat({ max: CLIENTS - 1 }),
      group: fc.nat({ max: GROUPS.length - 1 }),
      sample: fc.nat({ max: SAMPLES - 1 }),
      /** Tokens of the response that the writer hands over again. */
      repeated: fc.nat({ max: 12 }),
      count: fc.integer({ min: 1, max: 40 }),
    }),
  },
  {
    weight: 8,
    arbitrary: fc.record({
      kind: fc.constant("poll" as const),
      client: fc.nat({ max: CLIENTS - 1 }),
    }),
  },
  {
    weight: 16,
    arbitrary: fc.record({ kind: fc.constant("pass" as const), turn: fc.nat({ max: 20 }) }),
  },
  {
    weight: 1,
    arbitrary: fc.record({ kind: fc.constant("cut" as const), turn: fc.nat({ max: 20 }) }),
  },
  {
    weight: 1,
    arbitrary: fc.record({ kind: fc.constant("restart" as const), server: fc.nat({ max: 1 }) }),
  },
  {
    weight: 1,
    arbitrary: fc.record({ kind: fc.constant("evict" as const), server: fc.nat({ max: 1 }) }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant("wait" as const),
      ms: fc.integer({ min: 1, max: 30 }),
    }),
  },
);

/** Responses that repeat each other in part, so that there is something to draft. */
function tokenAt(group: number, sample: number, index: number): number {
  return index % 11 === sample ? 100 + sample : ((index * (group + 3)) % 19) + 10;
}

type Move = typeof move extends fc.Arbitrary<infer M> ? M : never;

function play(
  network: Network,
  clients: readonly TestClient[],
  moves: readonly Move[],
): number[][][] {
  const logs = GROUPS.map(() => Array.from({ length: SAMPLES }, (): number[] => []));
  for (const step of moves) {
    const client = "client" in step ? present(clients[step.client], "a client").client : null;
    if (step.kind === "write") {
      const log = present(logs[step.group]?.[step.sample], "a log");
      const offset = Math.max(0, log.length - step.repeated);
      for (let i = 0; i < step.count && log.length < TOKENS_MAX; i += 1) {
        log.push(tokenAt(step.group, step.sample, log.length));
      }
      const id = present(GROUPS[step.group], "a group");
      const write = (from: number) =>
        client?.append(id, {
          sampleIndex: step.sample,
          offset: from,
          tokens: Int32Array.from(log.slice(from)),
        });
      const result = write(offset);
      // A request that moves brings its response along; the engine hands over what is asked for.
      if (result?.kind === "gap") write(result.have);
    } else if (step.kind === "poll") client?.poll(network.clock.nowMs());
    else if (step.kind === "pass") network.pass(step.turn, false);
    else if (step.kind === "cut") network.pass(step.turn, true);
    else if (step.kind === "restart") network.restart(step.server);
    else if (step.kind === "evict") network.evict(step.server);
    else network.clock.advance(step.ms);
  }
  return logs;
}

/** Used again in every run: cores take long to collect. */
const replicas = Array.from({ length: CLIENTS }, newReplica);

test("client: replicas converge to identical drafts through any faults", () => {
  fc.assert(
    fc.property(fc.array(move, { maxLength: 150 }), (moves) => {
      const network = new Network(2);
      const dials = { one: network.dial(0), two: network.dial(1) };
      for (const replica of replicas) replica.clear();
      const clients = replicas.map((replica, id) =>
        newClient(network.clock, dials, { id, limits: LIMITS, replica }),
      );
      for (const { client } of clients) {
        for (const id of GROUPS) client.registerGroup(id, { prompt: PROMPT, ttlMs: TTL_MS });
      }
      const logs = play(network, clients, moves);
      const wanted = GROUPS.map((id, g) =>
        expectedDrafts(
          id,
          (logs[g] ?? []).map((log) => Int32Array.from(log)),
          PROMPT,
        ),
      );
      const draftsNow = () =>
        clients.map(({ client }) => GROUPS.map((id) => draftsOf(client, id, SAMPLES)));
      const goal = clients.map(() => wanted);
      for (let i = 0; i < 400 && !Bun.deepEquals(draftsNow(), goal); i += 1) {
        for (const { client } of clients) client.poll(network.clock.nowMs());
        network.passAll();
        network.clock.advance(1);
      }
      expect(draftsNow()).toEqual(goal);
    }),
    { numRuns: 1000 },
  );
});
