// Attacks by requests that end every server they reach, alone, many at once, sent again and again, among good requests
// and while servers are killed from outside as well. What must hold: such a request costs two servers, then it ends
// with a 502 that names it; every other request gets exactly its tokens; nothing hangs.
// Repeat a failure with SEED=n bun test <this file>.

import { expect, setDefaultTimeout, test } from "bun:test";
import { fold32 } from "../../../src/core/base/hash.ts";
import { until } from "../http-client.ts";
import type { StandInOptions, VllmStandIn } from "../stand-in/vllm-stand-in.ts";
import { rounds } from "./scale.ts";
import { expectedOf, StandInBed } from "./stand-in-bed.ts";

setDefaultTimeout(240_000);

const SEED = Number(process.env.SEED ?? 1);
/** A prompt that begins with it ends the server, after as many tokens as follow. */
const POISON = 999;
/** Longer than the worker goes on trying. */
const DOWN_MS = 1_000;

/** `downMs`: of the servers, in turn. 0: a supervisor starts it again at once. */
async function bedOf(count: number, downMs: readonly number[] = [DOWN_MS]): Promise<StandInBed> {
  const standIn = (index: number): Partial<StandInOptions> => ({
    slots: 8,
    downMs: downMs[index % downMs.length] ?? DOWN_MS,
    generate: index % 2 === 0 ? "enabled" : "disabled",
    faults: (_, [first, afterTokens = 0]) =>
      first === POISON ? { kind: "restart", afterTokens } : null,
  });
  return await StandInBed.start(count, standIn);
}

const restartsOf = (standIns: readonly VllmStandIn[]): number =>
  standIns.reduce((sum, { restarts }) => sum + restarts, 0);

test("poison: one request that ends servers costs two of them, the others get their tokens", async () => {
  for (let trial = 0; trial < rounds(2, 10); trial += 1) {
    const bed = await bedOf(3, [trial % 2 === 0 ? DOWN_MS : 0]);
    const goods = Array.from({ length: 40 }, (_, i) => [1 + trial, 1 + i]);
    const bad = [POISON, trial % 4, 5];
    const [told, ...others] = await Promise.all([
      bed.complete(bad),
      ...goods.map((prompt) => bed.complete(prompt)),
    ]);
    expect(others).toEqual(goods.map(expectedOf));
    expect(told.status).toBe(502);
    expect(told.message).toMatch(/^request \d+ \(group .*\): 2 workers ended while they ran it/);
    expect(restartsOf(bed.standIns)).toBe(2);
    expect(bed.quarantined).toEqual([told.message]);
    expect(await bed.http.metric("foretoken_quarantined_requests_total{")).toBe(1);
    // A client that tries again costs no server.
    expect((await bed.complete(bad)).status).toBe(502);
    expect(restartsOf(bed.standIns)).toBe(2);
    expect(bed.failures).toEqual([]);
    await bed.stop();
  }
});

test.each([DOWN_MS, 0])(
  "poison: a group of it, and rollouts with it, end each server a bounded number of times (down %i ms)",
  async (downMs) => {
    const servers = 3;
    const bed = await bedOf(servers, [downMs]);
    // Each server dies of what it runs first, then of the one suspect that it tries. A server that is back at once may
    // meet the requests that were on their way to it, and each of them ends it again.
    const deathsMax = (n: number) => servers + (downMs === 0 ? n : servers);
    const good = bed.complete([7, 7]);
    const many = await bed.complete([POISON, 0, 1], { n: 8 });
    expect(many.status).toBe(502);
    expect(restartsOf(bed.standIns)).toBeLessThanOrEqual(deathsMax(8));
    const before = restartsOf(bed.standIns);
    const { text } = await bed.http.ask("/v1/rollouts", {
      groups: [
        { id: "bad", token_ids: [POISON, 0, 2], n: 6 },
        { id: "good", token_ids: [7, 8], n: 1 },
      ],
      sampling_params: { max_tokens: 24 },
    });
    const lines = text
      .split("\n")
      .filter((line) => line.includes('"group"'))
      .map((line) => JSON.parse(line));
    const ofGroup = (id: string) => lines.filter(({ group }) => group === id);
    expect(ofGroup("good").map((line) => line.token_ids)).toEqual([expectedOf([7, 8]).tokens]);
    expect(ofGroup("bad").length).toBe(6);
    for (const { error } of ofGroup("bad")) expect(error.message).toContain("workers ended");
    expect(restartsOf(bed.standIns) - before).toBeLessThanOrEqual(deathsMax(6));
    const { status, ...told } = await good;
    // On its second try alone, it may meet one that was on its way, too: then it is blamed as that one is.
    if (downMs === 0 && status === 502) expect(told.message).toContain("2 workers ended");
    else expect({ status, ...told }).toEqual(expectedOf([7, 7]));
    await bed.stop();
  },
);

test("kills from outside, of one server or of all at once, lose no request", async () => {
  const bed = await bedOf(3, [200, 0]);
  const kills = rounds(6, 100);
  let isOver = false;
  /** Requests that each lane has ended. */
  const ended = Array.from({ length: 12 }, () => 0);
  const load = ended.map(async (_, lane) => {
    for (let i = 0; !isOver; i += 1) {
      const prompt = [10 + lane, i % 900];
      // With a penalty a response comes in one piece, and begins anew when its server dies.
      const told = await bed.complete(prompt, i % 2 === 0 ? {} : { presence_penalty: 0.5 });
      const where = `SEED=${SEED} ${prompt}`;
      expect({ where, told }).toEqual({ where, told: expectedOf(prompt) });
      ended[lane] = i + 1;
    }
  });
  for (let kill = 0; kill < kills; kill += 1) {
    // What ran at the kill before has ended, so that no request meets two.
    const before = [...ended];
    await until(() => ended.every((count, lane) => count > (before[lane] ?? 0)), "every lane");
    await Bun.sleep(fold32(SEED, kill) % 100);
    const which = fold32(SEED + 1, kill) % 4;
    // The fourth choice is all of them, as when a node is shut down.
    const targets = bed.standIns.filter((_, i) => which === 3 || i === which);
    for (const target of targets) void target.restart();
  }
  isOver = true;
  await Promise.all(load);
  expect(bed.quarantined).toEqual([]);
  expect(restartsOf(bed.standIns)).toBeGreaterThan(0);
  await bed.stop();
});
