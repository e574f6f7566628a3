// The other half of the comparison in the serve bench: a plain reverse proxy in Bun, and a server behind it that
// writes what the sidecar's streams carry.

import { GROUP_SIZE, type Order, type Ran, run, stamp, turn, WORKERS } from "./serve-load.ts";

/** Server-sent events as the sidecar writes them, from a process behind the proxy. */
export function startUpstream(): { url: string; obey: (order: Order) => Promise<Ran | null> } {
  const clients = new Set<ReadableStreamDefaultController<Uint8Array>>();
  const encoder = new TextEncoder();
  const server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    idleTimeout: 0,
    fetch: () => {
      const stream = new ReadableStream<Uint8Array>({
        start: (client) => void clients.add(client),
      });
      return new Response(stream, { headers: { "content-type": "text/event-stream" } });
    },
  });
  const obey = async (order: Order): Promise<Ran | null> => {
    if (order.kind === "ready") while (clients.size < order.count) await turn();
    if (order.kind !== "run") return null;
    return await run(order.load, async (step, tokens) => {
      // As many events at a time as a step of one of the sidecar's workers brings.
      const share = [...clients].filter((_, i) => i % WORKERS === step % WORKERS);
      for (const client of share) {
        for (let index = 0; index < GROUP_SIZE; index += 1) {
          client.enqueue(encoder.encode(eventOf(index, tokens)));
        }
      }
      await turn();
      while (share.some((client) => (client.desiredSize ?? 0) < -GROUP_SIZE * 4)) await turn();
      return share.length * GROUP_SIZE * tokens;
    });
  };
  return { url: String(server.url), obey };
}

function eventOf(index: number, tokens: number): string {
  const ids = new Array<number>(tokens).fill(stamp());
  const choice = { index, text: " word".repeat(tokens), logprobs: null, finish_reason: null };
  const chunk = { id: "cmpl-0123456789abcdef", object: "text_completion", created: 1_750_000_000 };
  const choices = [{ ...choice, stop_reason: null, token_ids: ids }];
  return `data: ${JSON.stringify({ ...chunk, model: "model", choices })}\n\n`;
}

export function startProxy(upstream: string): {
  url: string;
  obey: (order: Order) => Promise<Ran | null>;
} {
  const server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    idleTimeout: 0,
    fetch: async (request) => {
      const { method, headers } = request;
      const answer = await fetch(upstream, { method, headers, body: await request.bytes() });
      return new Response(answer.body, { headers: answer.headers });
    },
  });
  // What it carries is counted behind it.
  const idle = async () => {
    await Bun.sleep(20);
    return 0;
  };
  const obey = async (order: Order): Promise<Ran | null> =>
    order.kind === "run" ? await run(order.load, idle) : null;
  return { url: String(server.url), obey };
}
