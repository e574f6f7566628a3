// The native peer, arctic-inference, beside the core's micro benches: peer_core.py times it on the same texts. Optional.

import { join } from "node:path";
import { type Measurement, SEED } from "../harness.ts";
import { texts } from "./workload.ts";

/** Whether this Python has the peer. */
export function hasPeer(python: string): boolean {
  const probe = [python, "-c", "import arctic_inference.suffix_decoding"];
  try {
    return Bun.spawnSync(probe, { stdout: "ignore", stderr: "ignore" }).exitCode === 0;
  } catch {
    return false;
  }
}

/** The message if Python lacks it. */
export function peerMissing(python: string): string {
  return [
    `${python} cannot import arctic_inference; to install it without a GPU:`,
    "  python3 -m venv peer && peer/bin/pip install numpy",
    "  peer/bin/pip install --no-deps arctic-inference==0.1.1",
    "and name it: --python peer/bin/python",
  ].join("\n");
}

/** The output of peer_core.py. */
interface PeerFigures {
  readonly append_ns: number;
  readonly bytes: number;
  readonly path_us: number;
  readonly tree_us: number;
  readonly live_ns: number;
}

/** The peer's figures on the same texts; fewer live tokens favour it, as they do the other baselines. */
async function peerFigures(python: string, tokens: number, step: number): Promise<PeerFigures> {
  const lists = (groups: readonly Int32Array[][]) =>
    groups.map((group) => group.map((text) => [...text]));
  const [siblings] = lists(texts({ groups: 1, siblings: 16, tokens }, SEED));
  const live = lists(texts({ groups: 16, siblings: 8, tokens: tokens >> 3 }, SEED));
  const input = JSON.stringify({ siblings, live, step });
  const child = Bun.spawn([python, join(import.meta.dir, "peer_core.py")], {
    stdin: new Blob([input]),
    stdout: "pipe",
    stderr: "inherit",
  });
  const text = await new Response(child.stdout).text();
  if ((await child.exited) !== 0) throw new Error("the peer's bench failed");
  return JSON.parse(text) as PeerFigures;
}

/** The rows that the peer has too, with its figure among the baselines. */
export async function besidePeer(
  rows: readonly Measurement[],
  peer: { readonly python: string; readonly tokens: number; readonly step: number },
): Promise<Measurement[]> {
  const found = await peerFigures(peer.python, peer.tokens, peer.step);
  const figures = new Map<string, number>([
    ["append, 16 siblings, a token", found.append_ns],
    ["stored token", found.bytes],
    ["append + path, 128 requests, a token", found.live_ns],
    ["path of 16, JS call included", found.path_us],
    ["tree of 16, JS call included", found.tree_us],
  ]);
  return rows.map((row) => {
    const figure = figures.get(row.name);
    if (figure === undefined) return row;
    return { ...row, baselines: { "arctic-inference 0.1.1": figure, ...row.baselines } };
  });
}
