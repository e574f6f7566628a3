// Streams that do not end well: a client that does not read, a worker that fails, a rollout that breaks.

import { expect, test } from "bun:test";
import { type FixtureOptions, ownFixture } from "../../../test/golden/requests/plane-fixture.ts";
import { TinyText } from "../../../test/golden/requests/tiny-text.ts";
import { followedJob, NO_STOPS, restlessCoalescer } from "../../../test/suite/followed-job.ts";
import { specFor } from "../../../test/suite/sidecar-bed.ts";
import { eventsOf, tokensIn } from "../../../test/suite/sse.ts";
import type { Answer } from "./answer.ts";
import { parseGenerate } from "./generate.ts";
import { Job } from "./job.ts";

async function begun(length: number, options: FixtureOptions = {}) {
  const fixture = ownFixture({ lengthOf: () => length, ...options });
  const body = { token_ids: [1], sampling_params: { max_tokens: 900 }, stream: true };
  return { fixture, ...(await followedJob(fixture, parseGenerate, body)) };
}

test("streams: a client that takes nothing is dropped, and costs no memory until then", async () => {
  const { fixture, follow, timers, ends } = await begun(500);
  const response = follow();
  await fixture.step(100);
  expect(timers.length).toBe(1);
  timers[0]?.();
  expect(ends).toEqual(["closed"]);
  await expect(response.text()).rejects.toThrow("the client took nothing for 1000 ms");
});

test("streams: a client that reads late gets all of it, in few pieces", async () => {
  const { fixture, follow, timers, ends } = await begun(500);
  const response = follow();
  await fixture.step(700);
  let pieces = 0;
  let text = "";
  const decoder = new TextDecoder();
  for await (const bytes of response.body ?? []) {
    pieces += 1;
    text += decoder.decode(bytes);
  }
  const { events, isDone } = eventsOf(text);
  expect([tokensIn(events).length, isDone, pieces < 5]).toEqual([500, true, true]);
  expect([ends, timers]).toEqual([["closed"], []]);
});

test("streams: an error after the first byte is an event, and no [DONE] follows", async () => {
  const { fixture, job, follow, ends } = await begun(500);
  const text = follow().text();
  await fixture.step(5);
  job.fail(new Error("broken"));
  const { events, isDone } = eventsOf(await text);
  expect(isDone).toBe(false);
  expect(events.length).toBeGreaterThan(1);
  const message = "the rollout has stopped; restart the server";
  const error = { message, type: "InternalServerError", param: null, code: 502 };
  expect(events.at(-1)).toEqual({ error });
  expect(ends).toEqual(["closed"]);
});

test("streams: tokens that a client has seen cannot be taken back; others restart without an error", async () => {
  const { fixture, job, follow } = await begun(50, { whole: true });
  const text = follow().text();
  await fixture.step(5);
  for (const worker of fixture.workers) if (!worker.isIdle) worker.kill();
  const { events, isDone } = eventsOf(await fixture.until(text));
  expect(isDone).toBe(false);
  expect(events.at(-1)).toMatchObject({ error: { code: 502 } });
  const late = eventsOf(await fixture.until(follow().text()));
  expect([late.isDone, job.completionTokens]).toEqual([true, 50]);
});

test("streams: a fault in writing one answer ends this stream with an error, and no other", async () => {
  const { fixture, job, answer, follow, ends, crashes } = await begun(50);
  const faulty: Answer = {
    ...answer,
    stream: (of) => {
      const view = answer.stream(of);
      return {
        ...view,
        delta: (output, cursor) => {
          if (output.tokens > 10) throw new Error("fault");
          return view.delta(output, cursor);
        },
      };
    },
  };
  const bad = follow(faulty).text();
  const good = follow().text();
  const [badText, goodText] = await fixture.until(Promise.all([bad, good]));
  expect(eventsOf(badText).isDone).toBe(false);
  expect(eventsOf(badText).events.at(-1)).toMatchObject({
    error: { message: "a fault of the server: fault", code: 500 },
  });
  expect([eventsOf(goodText).isDone, job.completionTokens]).toEqual([true, 50]);
  expect(crashes.map(String)).toEqual(["Error: fault"]);
  expect(ends).toEqual(["closed", "closed"]);
});

test("coalescer: a job that throws fails by itself; present and later jobs continue", async () => {
  const failures: unknown[] = [];
  const coalescer = restlessCoalescer((error) => failures.push(error));
  const { fixture } = await begun(20);
  const detokenizer = (isFaulty: boolean) => ({
    push: (tokens: ArrayLike<number>) => {
      if (isFaulty) throw new Error("no such token");
      return "x".repeat(tokens.length);
    },
    flush: () => "",
  });
  const jobOf = (token: number, isFaulty: boolean): Job => {
    const text = Object.assign(new TinyText(), { detokenizer: () => detokenizer(isFaulty) });
    const work = { specs: [specFor([token], 1)], stops: [NO_STOPS], text };
    return new Job(work, { id: String(token), sidecar: fixture.sidecar, coalescer });
  };
  const bad = jobOf(1, true);
  const good = jobOf(2, false);
  const failure = await fixture.until(bad.done.catch((error: unknown) => error));
  expect(String(failure)).toBe("AppError: a fault of the server: no such token");
  await fixture.until(good.done);
  const later = jobOf(3, false);
  await fixture.until(later.done);
  const texts = [good, later].map(({ outputs }) => outputs[0]?.pieces.join(""));
  expect(texts).toEqual(Array(2).fill("x".repeat(20)));
  expect(failures.map(String)).toEqual(["Error: no such token"]);
});

test("jobs: a rollout that breaks is an error to those who wait", async () => {
  const { job } = await begun(30);
  job.fail(new Error("broken"));
  await expect(job.done).rejects.toThrow("the rollout has stopped");
});
