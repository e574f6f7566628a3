// A request as a job on a fixture's workers, and streams that follow it, without a connection.

import type { Answer } from "../../src/server/openai/answer.ts";
import { DataPlane } from "../../src/server/openai/data-plane.ts";
import { eventStream } from "../../src/server/openai/event-stream.ts";
import { Job, OutputCoalescer } from "../../src/server/openai/job.ts";
import type { ParsedRequest } from "../../src/server/openai/plan.ts";
import type { StopRules } from "../../src/server/openai/sampling-fields.ts";
import type { PlaneFixture } from "../golden/requests/plane-fixture.ts";
import { EOS, TinyText, tinyEncoder } from "../golden/requests/tiny-text.ts";
import { exchangeOf } from "./exchange.ts";

const EXCHANGE = exchangeOf("POST", "/", null);

/** Never rests: what is sent does not depend on how fast the machine is. */
export const restlessCoalescer = (failed: (error: unknown) => void = () => undefined) =>
  new OutputCoalescer(failed, () => 0);
export const STALL_MS = 1000;
export const NO_STOPS: StopRules = {
  ...{ strings: [], keepStop: false, skipSpecial: true },
  ...{ tokens: new Set(), tokensMin: 0, eos: EOS },
};

export async function followedJob<T>(
  { sidecar }: PlaneFixture,
  parse: (body: T, source: string) => ParsedRequest,
  body: T,
) {
  const plane = new DataPlane({
    sidecar,
    text: new TinyText(),
    encoder: tinyEncoder(),
    modelNames: ["tiny"],
    eosTokenIds: [EOS],
    version: (epoch) => `v${epoch}`,
  });
  const request = parse(body, JSON.stringify(body));
  const plan = await plane.planner.plan(request, EXCHANGE);
  const { answer } = plan;
  const job = new Job(plan, { id: "x", sidecar, coalescer: restlessCoalescer() });
  const timers: (() => void)[] = [];
  /** An entry for each stream that has ended. */
  const ends: string[] = [];
  const crashes: unknown[] = [];
  const follow = (by: Answer = answer): Response =>
    eventStream(job, by.stream(job), {
      took: () => undefined,
      crashed: (error) => crashes.push(error),
      stallMsMax: STALL_MS,
      later: (run) => {
        timers.push(run);
        return () => {
          timers.splice(timers.indexOf(run), 1);
        };
      },
      closed: () => void ends.push("closed"),
    });
  return { job, answer, follow, timers, ends, crashes };
}
