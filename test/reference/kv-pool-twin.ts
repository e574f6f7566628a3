// The slow, obvious twin of the embedded KV pool: two arrays, oldest use first, and no background.

import type { KvKey } from "../../src/core/kv/pool.ts";

interface Entry {
  readonly key: KvKey;
  readonly bytes: Uint8Array;
}

export class KvPoolTwin {
  memory: Entry[] = [];
  disk: Entry[] = [];
  evictions = 0;
  readonly #memoryBytesMax: number;
  readonly #diskBytesMax: number;

  constructor(memoryBytesMax: number, diskBytesMax: number) {
    this.#memoryBytesMax = memoryBytesMax;
    this.#diskBytesMax = diskBytesMax;
  }

  put(key: KvKey, bytes: Uint8Array): boolean {
    if (this.find(key) !== undefined) return true;
    if (bytes.length > this.#memoryBytesMax) return false;
    while (sum(this.memory) + bytes.length > this.#memoryBytesMax) {
      this.#demote(takeOldest(this.memory));
    }
    this.memory.push({ key, bytes });
    return true;
  }

  get(key: KvKey): Uint8Array | null {
    for (const tier of [this.memory, this.disk]) {
      const at = tier.findIndex((entry) => entry.key === key);
      if (at >= 0) tier.push(...tier.splice(at, 1));
    }
    return this.find(key)?.bytes ?? null;
  }

  release(key: KvKey): void {
    this.memory = this.memory.filter((entry) => entry.key !== key);
    this.disk = this.disk.filter((entry) => entry.key !== key);
  }

  find(key: KvKey): Entry | undefined {
    return [...this.memory, ...this.disk].find((entry) => entry.key === key);
  }

  #demote(entry: Entry): void {
    if (entry.bytes.length > this.#diskBytesMax) {
      this.evictions += 1;
      return;
    }
    while (sum(this.disk) + entry.bytes.length > this.#diskBytesMax) {
      takeOldest(this.disk);
      this.evictions += 1;
    }
    this.disk.push(entry);
  }
}

function takeOldest(tier: Entry[]): Entry {
  const entry = tier.shift();
  if (entry === undefined) throw new Error("nothing to take");
  return entry;
}

export function sum(entries: readonly Entry[]): number {
  return entries.reduce((total, entry) => total + entry.bytes.length, 0);
}
