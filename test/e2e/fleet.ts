// A sidecar and its linked workers as processes of their own, with deterministic engines, so that what a fault must not
// change can be compared bit for bit.

import { freePort } from "../../src/tools/up/ports.ts";
import { until } from "../faults/http-client.ts";
import { ToolProcess } from "../faults/process.ts";

const HOST = "127.0.0.1";
export const ENGINE = [
  ...["--deterministic", "--slots", "8", "--kv-tokens", "16384", "--max-model-len", "1024"],
];

/** Starts a worker on a free port, or on the port of an earlier one (`at`). */
export function startWorker(at: string | null, ...args: string[]): Promise<ToolProcess> {
  const listen = at === null ? `${HOST}:${freePort(HOST)}` : new URL(at).host;
  return ToolProcess.listening("worker", "--listen", listen, ...ENGINE, ...args);
}

export function startSidecar(
  workers: readonly ToolProcess[],
  ...args: string[]
): Promise<ToolProcess> {
  const urls = workers.flatMap(({ url }) => ["--worker", url]);
  return ToolProcess.listening("serve", "--port", "0", ...urls, ...args);
}

export async function untilServing({ http }: ToolProcess): Promise<void> {
  await until(() => http.isServing(), "every worker");
}

/** Token ids of response `n`, all of `tokensMax`. */
export function generate(
  { http }: ToolProcess,
  n: number,
  tokensMax: number,
): Promise<readonly number[]> {
  const params = { max_tokens: tokensMax, ignore_eos: true, seed: n, temperature: 1 };
  return http.tokens([5, 6, 7, 8 + n, 9], params);
}

/** Calls `act` while nothing is generated; afterwards it goes on, and resolves when there are new tokens. */
export async function generatingAfter({ http }: ToolProcess, act: () => Promise<void>) {
  const made = () => http.metric("vllm:generation_tokens_total");
  await http.post("/pause?mode=keep", {});
  const before = await made();
  await act();
  await http.post("/resume", {});
  await until(async () => (await made()) > before, "tokens");
}
