// The newest KV blob of each request in the pool. Siblings with equal texts share a blob, which is released with the
// last of its requests.

import type { RequestId, WeightEpoch, WeightsId } from "../base/ids.ts";
import { kvKey } from "../kv/key.ts";
import type { KvKey, KvPool } from "../kv/pool.ts";
import { contextTokens, type RolloutRequest } from "../request/buffer.ts";
import type { KvBlob } from "./worker.ts";

interface PooledBlob {
  readonly key: KvKey;
  readonly tokens: number;
  /** Weights that the KV was computed with: with others it is of no use. */
  readonly weights: WeightsId | null;
}

export class PooledKv {
  readonly #pool: KvPool;
  readonly #blobs = new Map<RequestId, PooledBlob>();
  readonly #owners = new Map<KvKey, number>();
  readonly #failed: () => void;

  /** `failed`: a call to the pool threw. What it was about counts as not there. */
  constructor(pool: KvPool, failed: () => void) {
    this.#pool = pool;
    this.#failed = failed;
  }

  /** A blob that the pool refuses is simply not there. */
  store(
    request: RolloutRequest,
    { bytes, tokens }: KvBlob,
    { epoch, weights }: { epoch: WeightEpoch; weights: WeightsId | null },
  ): void {
    const { requestId, sampling } = request.spec;
    const salt = sampling.cacheSalt ?? null;
    const key = kvKey(epoch, allTokens(request), tokens, { weights, salt });
    if (this.#blobs.get(requestId)?.key === key) return;
    this.release(requestId);
    try {
      if (!this.#pool.put(key, bytes)) return;
    } catch {
      this.#failed();
      return;
    }
    this.#blobs.set(requestId, { key, tokens, weights });
    this.#owners.set(key, (this.#owners.get(key) ?? 0) + 1);
  }

  /** The blob of the request that a worker with these weights can load. */
  blob(requestId: RequestId, weights: WeightsId | null): PooledBlob | null {
    const blob = this.#blobs.get(requestId);
    return blob === undefined || blob.weights !== weights ? null : blob;
  }

  /** null: it is not there any more, or cannot be read; its tokens are computed again. Never rejects. */
  async bytes(blob: PooledBlob): Promise<ArrayBuffer | null> {
    try {
      return await this.#pool.get(blob.key);
    } catch {
      this.#failed();
      return null;
    }
  }

  /** A blob of `from` is `heir`'s, if both have the tokens of it: the first `sharedTokens` are the same. */
  inherit(heir: RolloutRequest, from: RolloutRequest, sharedTokens: number): void {
    const blob = this.#blobs.get(from.spec.requestId);
    if (blob === undefined || blob.tokens > sharedTokens) return;
    this.#blobs.delete(from.spec.requestId);
    this.#blobs.set(heir.spec.requestId, blob);
  }

  release(requestId: RequestId): void {
    const blob = this.#blobs.get(requestId);
    if (blob === undefined) return;
    this.#blobs.delete(requestId);
    const others = (this.#owners.get(blob.key) ?? 1) - 1;
    if (others > 0) {
      this.#owners.set(blob.key, others);
    } else {
      this.#owners.delete(blob.key);
      this.#drop([blob.key]);
    }
  }

  /** The weights have changed: no blob is of any use. */
  clear(): void {
    this.#drop([...this.#owners.keys()]);
    this.#blobs.clear();
    this.#owners.clear();
  }

  #drop(keys: readonly KvKey[]): void {
    try {
      this.#pool.release(keys);
    } catch {
      this.#failed();
    }
  }
}

function allTokens(request: RolloutRequest): Int32Array {
  const tokens = new Int32Array(contextTokens(request));
  tokens.set(request.spec.prompt);
  tokens.set(request.response.tokens(), request.spec.prompt.length);
  return tokens;
}
