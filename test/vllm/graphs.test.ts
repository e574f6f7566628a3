// Every step runs in a full CUDA graph of vLLM, for what `up --plugin` starts on GPUs and every length that the plugin may
// choose: asked of vLLM's own manager of graphs, which needs no GPU to answer, in 0.32 and in the sources of 0.33.

import { expect, test } from "bun:test";
import { join } from "node:path";
import { launchOf } from "../../src/tools/up/launch.ts";
import { ROOT, scripted, vllmMissing } from "./fleet.ts";

interface Found {
  readonly lengths: readonly number[];
  readonly problem: string;
  readonly chosen: readonly number[];
  readonly outside: readonly number[];
  readonly others_outside: readonly number[];
  readonly captured: Readonly<Record<string, number>>;
  readonly without_plugin: readonly number[];
  readonly lookup: readonly unknown[];
}

/** The server's command, as `up --plugin` writes it, with what the user adds. */
function flags(extraArgs: readonly string[]): readonly string[] {
  const { command } = launchOf({
    ...{ command: "vllm", build: { version: "0.32.0", isCpu: false }, model: "/m" },
    ...{ host: "127.0.0.1", port: 8100, gpus: "0", contextTokens: null, servedName: null },
    apiKey: null,
    pool: null,
    plugin: { draftUrl: "ws://127.0.0.1:8000/v1/draft", token: null, statsFile: "/s", runner: 2 },
    extraArgs,
  });
  return command.slice(3);
}

const SIZES = [5, 8, 72, 100, 131, 255, 300, 1024].map((size) => ["--max-num-seqs", String(size)]);
const SPECULATOR = { method: "ngram_gpu", model: "foretoken_vllm.speculator" };
const drafting = (more: object) => [
  "--speculative-config",
  JSON.stringify({ ...SPECULATOR, ...more }),
];
/** Flags of the user, which come last. */
const OWN = {
  plain: drafting({ num_speculative_tokens: 7 }),
  sizes: ["--cudagraph-capture-sizes", "8", "64", "512"],
  eight: drafting({
    num_speculative_tokens: 8,
    num_speculative_tokens_per_batch_size: [[1, 9, 8]],
  }),
  adaptive: drafting({ num_speculative_tokens: 7, enable_adaptive_verification: true }),
  eager: ["--enforce-eager"],
  ranks: ["--data-parallel-size", "2"],
  elsewhere: ["--distributed-executor-backend", "mp"],
};

const missing = vllmMissing();
test.skipIf(missing !== null).each(["here", "0.33.0"])(
  "graphs, vLLM %s: no length that the plugin may choose leaves them, and it says what the user's flags forbid",
  (version) => {
    const fitting = [[], ...SIZES, ["--max-loras=3"]];
    const cases = [...fitting, ...Object.values(OWN)].map((more) => JSON.stringify(flags(more)));
    const env = { PYTHONPATH: join(ROOT, "native", "foretoken_vllm", "src") };
    const all: Found[] = JSON.parse(scripted(["graph_cases.py", version, ...cases], env));
    for (const found of all.slice(0, fitting.length)) expectFitting(found);
    const [plain, sizes, eight, adaptive, eager, ranks, elsewhere] = all.slice(fitting.length);
    expect(plain).toMatchObject({ lengths: [7], chosen: [7] });
    expect(plain?.problem).toContain("without a CUDA graph: 0 beyond 0, 1 beyond 0, 3 beyond 0;");
    expect(sizes).toMatchObject({ lengths: [1, 7], chosen: [1, 7], outside: [7] });
    expect(sizes?.problem).toContain(
      "of up to 256 requests, draft lengths without a CUDA graph: 0 beyond 64, 3 beyond 128, 7 beyond 64;",
    );
    expect(eight).toMatchObject({ lengths: [8], outside: [8] });
    // A graph for as many rows as there are, however they are shared out.
    expect(adaptive).toMatchObject({ lengths: [0, 1, 2, 3, 4, 5, 6, 7], problem: "", outside: [] });
    // None is worse than another.
    expect(eager).toMatchObject({ lengths: [0, 1, 3, 7], captured: {} });
    expect(eager?.problem).toContain("--enforce-eager");
    expect(ranks).toMatchObject({ lengths: [7], chosen: [7] });
    expect(ranks?.problem).toContain("--data-parallel-size");
    expect(elsewhere).toMatchObject({ lengths: [0, 1, 3, 7], outside: [] });
    expect(elsewhere?.problem).toContain("executor mp");
  },
  200_000,
);

function expectFitting(found: Found): void {
  expect(found).toMatchObject({ lengths: [0, 1, 3, 7], problem: "", chosen: [0, 1, 3, 7] });
  expect(found).toMatchObject({ outside: [], others_outside: [2, 4, 5, 6] });
  // No table while the longest is wanted: vLLM pads requests that begin.
  expect(found.lookup).toEqual([null, null, [1, 1], null]);
  const { without_plugin: drafts } = found;
  const requests = drafts.length - 1;
  expect(drafts.slice(requests - 3)).toEqual([0, 1, 3, 7]);
  expect(drafts.slice(1, requests - 3).every((count) => count === 7)).toBe(true);
}
