// Whether, and how, KV moves through a server's connector: proved on the server before anything relies on it. What the
// connector's folder holds from before is of other weights, for all that is known, and goes.

import { AppError } from "../../base/errors.ts";
import type { WeightEpoch, WorkerId } from "../../base/ids.ts";
import type { TimerClock } from "./clock.ts";
import type { HttpClient } from "./http.ts";
import { KvFolder, storedName } from "./kv-folder.ts";
import type { KvShare } from "./kv-share.ts";
import type { VllmLimits } from "./limits.ts";
import { type Capabilities, canary } from "./probe.ts";
import { ServerKv } from "./server-kv.ts";

export interface OpenKvOptions {
  readonly workerId: WorkerId;
  readonly epoch: WeightEpoch;
  readonly client: HttpClient;
  readonly clock: TimerClock;
  readonly limits: VllmLimits;
  readonly capabilities: Capabilities;
  readonly cacheSalt: string;
  /** null: KV moves between no servers. */
  readonly share: KvShare | null;
  readonly warn: (message: string) => void;
}

/**
 * null: it has no connector, or one that nothing can be left in.
 * @throws AppError invalid_config: its connector keeps KV by tokens alone, where nobody can take it away.
 */
export async function openKv(options: OpenKvOptions): Promise<ServerKv | null> {
  const { capabilities, share, warn, client } = options;
  const { connector } = capabilities;
  const blockSize = capabilities.metrics.cache?.blockSize ?? null;
  if (connector === null) return null;
  const { className, row, problem, fix } = connector;
  if (problem !== null) {
    warn(`no KV moves through ${className}: ${problem}${fix === null ? "" : `: ${fix}`}`);
  }
  if (share === null || blockSize === null || row === null || row.reach === "none") return null;
  const folder = row.reach === "folder" ? await provenFolder(options) : null;
  const { workerId, epoch, clock, limits, cacheSalt } = options;
  const kv = new ServerKv({
    workerId,
    epoch,
    found: connector,
    folder,
    blockSize,
    dialect: capabilities,
    client,
    clock,
    limits,
    cacheSalt,
    share,
  });
  if (kv.problem !== null && kv.problem !== problem) {
    warn(`no KV moves through ${className}: ${kv.problem}: give each server a folder of its own`);
  }
  return kv;
}

/** The server's folder, if it is on this machine: what the server is made to store is seen there. */
async function provenFolder(options: OpenKvOptions): Promise<KvFolder> {
  const { capabilities, client, cacheSalt, limits } = options;
  const path = capabilities.connector?.folder ?? null;
  const folder = path === null ? null : new KvFolder(path);
  const left = folder?.clear() ?? null;
  if (folder !== null && left === null) {
    await canary(client, { dialect: capabilities, cacheSalt, msMax: limits.checkMsMax });
    // A prompt shorter than a block is stored under the name of no tokens.
    const isSeen = folder.isShown(storedName(new Int32Array(0), 0));
    if (isSeen && folder.clear() === null) return folder;
  }
  throw new AppError(
    "invalid_config",
    `${client.url} keeps KV by its tokens alone, in ${path ?? "a folder it does not name"}, which cannot be emptied ` +
      `from here${left === null ? "" : ` (${left})`}: after a weight update it would use KV of the old weights. ` +
      "Start it without --kv-transfer-config, or on this machine",
  );
}
