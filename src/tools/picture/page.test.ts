import { expect, test } from "bun:test";
import type { ChunkRow } from "../../core/rollout/timeline.ts";
import { iterationsPage, type MeasuredRun } from "./page.ts";
import { speedupSentence } from "./speedup.ts";

/** `engines` engines, and `responses` responses of two chunks each, on two engines in turn. */
function runOf(engines: number, responses: number, accepted: number): MeasuredRun {
  const ms = Array.from({ length: 200 }, (_, i) => i * 50);
  return {
    name: "seer",
    wall_s: 10,
    tail_s: 2,
    preemptions: 3,
    timeline: {
      responses: Array.from({ length: responses }, (_, i) => ({
        group: `g<${i >> 3}`,
        index: i & 7,
        request: i,
        joined_ms: 0,
        end_ms: 10_000 - i / 2,
        finish_reason: "stop",
        tokens: 60,
        chunks: [0, 1].map((piece): ChunkRow => {
          const startMs = piece * 4000;
          const times = [startMs, startMs + 3000, startMs + 10] as const;
          return [(i + piece) % engines, ...times, 30, 0, 10, accepted, 0, "done"];
        }),
      })),
      workers: Array.from({ length: engines }, (_, worker) => ({
        ...{ worker, name: `e${worker}`, slots: 8, kv_tokens: 1000, at_ms: ms },
        ...{ running: ms.map((at) => (at / 50 + worker) % 9), waiting: ms.map(() => 0) },
        kv_tokens_used: ms.map((at) => at / 10),
      })),
    },
  };
}

test("page: engines, drafts and the last responses of a small and of a large run", () => {
  for (const [engines, responses] of [
    [1, 1],
    [2, 16],
    [32, 16_384],
  ] as const) {
    const page = iterationsPage([runOf(engines, responses, 5)], ["1 < 2"]);
    expect(page).toContain("<p>1 &lt; 2</p>");
    expect(page).toContain("g&lt;0 / 0, 60 tokens");
    expect(page).toContain(">tokens a step<");
    expect(page).not.toMatch(/NaN|undefined|Infinity/);
    expect(page.length).toBeLessThan(100_000);
    const rows = page.match(/class="axis (over|)">g&lt;/g)?.length;
    expect(rows).toBe(Math.min(12, responses));
  }
});

test("page: a run without accepted draft tokens has no strip for them", () => {
  expect(iterationsPage([runOf(2, 4, 0)], [])).not.toContain(">tokens a step<");
});

test("speedup: the factors multiply to the whole; drafts that cost time count as 1", () => {
  const group = { busy_s: 15, draft_saved_s: 0 };
  const sentence = speedupSentence(["group", group], ["seer", { busy_s: 10, draft_saved_s: 6 }], {
    speedup: 2,
  });
  expect(sentence).toBe(
    "seer finished 2.00 times as fast as group: 1.25 from balance and KV kept, 1.60 from drafts",
  );
  const none = speedupSentence(["group", group], ["divided", group], { speedup: 1.5 });
  expect(none).toBe("divided finished 1.50 times as fast as group: 1.50 from balance and KV kept");
  const busy = speedupSentence(["group", group], ["divided", group], {
    speedup: 1.5,
    isEngineTime: true,
  });
  expect(busy).toStartWith("By engine time divided finished 1.50 times as fast as group: ");
  const costly = speedupSentence(["group", group], ["seer", { busy_s: 9, draft_saved_s: -1 }], {
    speedup: 1.2,
  });
  expect(costly).toContain("1.20 from balance and KV kept, 1.00 from drafts");
});
