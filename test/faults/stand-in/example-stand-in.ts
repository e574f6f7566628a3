// A double of the example's server. A token depends on the seed, on its place in the step and on the token before, so that
// a worker with wrong seeds, steps or texts fails the contract.

import { fold32 } from "../../../src/core/base/hash.ts";

interface Step {
  readonly tokens: readonly number[];
  readonly seed: number;
  readonly n: number;
}

export function startStandIn() {
  const steps: Step[] = [];
  /** Statuses of the next steps. */
  const refusals: number[] = [];
  const server = Bun.serve({
    ...{ hostname: "127.0.0.1", port: 0 },
    async fetch(request) {
      if (new URL(request.url).pathname === "/health") return new Response();
      const status = refusals.shift();
      if (status !== undefined) return new Response("refused", { status });
      const step = (await request.json()) as Step;
      steps.push(step);
      const drawn: number[] = [];
      // Most answers are shorter than asked.
      for (let i = 0; i < Math.min(step.n, 6); i += 1) {
        const before = drawn.at(-1) ?? step.tokens.at(-1) ?? 0;
        drawn.push(fold32(fold32(step.seed, i), before) % 1000);
      }
      return Response.json({ tokens: drawn, logprobs: drawn.map(() => -1) });
    },
  });
  const url = `example://127.0.0.1:${server.port}`;
  return { url, steps, refusals, stop: () => server.stop(true) };
}
