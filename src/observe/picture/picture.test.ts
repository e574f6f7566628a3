import { expect, test } from "bun:test";
import type { ChunkRow } from "../../core/rollout/timeline.ts";
import { figureOf, type MeasuredRun } from "./figure.ts";
import { comparisonPage } from "./page.ts";
import { picture } from "./svg.ts";

/** `responses` responses of two chunks each, on two engines in turn; the last engine is idle in the second half. */
function runOf(engines: number, responses: number): MeasuredRun & { requests: number } {
  const ms = Array.from({ length: 200 }, (_, i) => i * 50);
  return {
    name: "a<b",
    wall_s: 10,
    tail_s: 2,
    preemptions: 3,
    requests: responses,
    timeline: {
      responses: Array.from({ length: responses }, (_, i) => ({
        group: `g<${i >> 3}`,
        index: i & 7,
        request: i,
        prompt_tokens: 4,
        tokens_max: 64,
        joined_ms: 0,
        end_ms: 10_000 - i / 2,
        finish_reason: "stop",
        tokens: 60 + (i >> 3),
        chunks: [0, 1].map((piece): ChunkRow => {
          const times = [piece * 5000, piece * 5000 + 5000, piece * 5000] as const;
          return [(i + piece) % Math.max(1, engines - 1), ...times, 30, 0, 10, 5, 0, "done"];
        }),
      })),
      workers: Array.from({ length: engines }, (_, worker) => ({
        worker,
        name: `e${worker}`,
        slots: 8,
        kv_tokens: 1000,
        at_ms: ms,
        running: ms.map((at) => (at / 50 + worker) % 9),
        waiting: ms.map(() => 0),
        kv_tokens_used: ms.map((at) => at / 10),
        // A quarter of the first two seconds.
        recomputing_ms: ms.map((at) => Math.min(500, at / 4)),
        output_tokens: ms.map((at) => Math.floor(at / 50)),
      })),
    },
  };
}

/** Texts of an SVG, with where they stand. */
function textsOf(svg: string): { text: string; x: number; y: number; anchor: string }[] {
  const texts = svg.matchAll(/<text x="([\d.]+)" y="([\d.]+)"(?: class="(\w+)")?>(.*?)<\/text>/g);
  return [...texts].map(([, x, y, anchor = "", text = ""]) => ({
    text: text.replace(/<.*?>/g, ""),
    x: Number(x),
    y: Number(y),
    anchor,
  }));
}

test("picture: a small and a large run are drawn whole, and small", () => {
  for (const [engines, responses] of [
    [1, 0],
    [2, 1],
    [3, 16],
    [33, 16_384],
  ] as const) {
    const run = runOf(engines, responses);
    const page = comparisonPage([run, run], { areEqual: true, facts: ["1 < 2"] });
    expect(page).toContain("<p>1 &lt; 2</p>");
    expect(page).toContain(`The same ${responses.toLocaleString("en-US")} response`);
    expect(page).not.toMatch(/NaN|undefined|Infinity|a<b|g<0/);
    expect(page.length).toBeLessThan(engines > 4 ? 700_000 : 80_000);
  }
});

test("figure: idle is the time without a chunk, recomputing what was counted, and moves are changes of the engine", () => {
  const { engines, longest, tokens_per_s } = figureOf(runOf(3, 16));
  expect(engines.map(({ idle }) => idle)).toEqual([0, 0, 1]);
  expect(engines[0]?.recomputing).toBeCloseTo(0.05, 3);
  // Three engines of a token in 50 ms.
  expect(tokens_per_s.slice(0, 3)).toEqual([60, 60, 60]);
  expect(engines[0]?.over_time.recomputing.slice(0, 2)).toEqual([0.25, 0.25]);
  expect(longest).toMatchObject({ group: "g<1", size: 8 });
  expect(longest?.responses[0]).toMatchObject({
    moves: 1,
    pieces: [
      [0, 0, 5],
      [1, 5, 10],
    ],
  });
  expect(figureOf(runOf(1, 0)).longest).toBeNull();
});

test("figure: the picture's data are in the page, as JSON that cannot end its script", () => {
  const run = { ...runOf(2, 8), name: "</script>" };
  const page = comparisonPage([run], { areEqual: false, facts: [] });
  const [, json = ""] =
    /<script type="application\/json" id="data">(.*?)<\/script>/s.exec(page) ?? [];
  expect(JSON.parse(json)).toEqual({ headline: "8 responses: 10.0 s", runs: [figureOf(run)] });
});

test("picture: an engine's shares stand beside its lane", () => {
  const svg = picture("h", [figureOf(runOf(3, 16))]);
  const beside = textsOf(svg).filter(({ anchor }) => anchor === "lost");
  const again = "5 % recomputing";
  expect(beside.map(({ text }) => text)).toEqual([again, again, `100 % idle, ${again}`]);
  const lanesEnd = Math.max(
    ...[...svg.matchAll(/H([\d.]+)" class="waits"/g)].map(([, x]) => Number(x)),
  );
  expect(beside.every(({ x }) => x > lanesEnd)).toBe(true);
});
