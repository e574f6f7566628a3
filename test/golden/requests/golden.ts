// What trainers send, and what they get: recorded exchanges, each file against a fresh server over simulated
// workers. Only ids, times and the server's own address differ from run to run.

import { readFileSync } from "node:fs";

export interface GoldenExchange {
  readonly request: {
    readonly method: string;
    readonly path: string;
    readonly headers: Record<string, string>;
    readonly body: unknown;
  };
  readonly response: { readonly status: number; readonly body: unknown };
}

export interface GoldenFile {
  /** The trainer that sends this request, and when. */
  readonly source: string;
  readonly exchanges: readonly GoldenExchange[];
}

export const GOLDEN_NAMES = ["trl", "skyrl", "prime-rl", "slime", "nemo-gym"] as const;

export function goldenFile(name: (typeof GOLDEN_NAMES)[number]): GoldenFile {
  return JSON.parse(readFileSync(new URL(`${name}.json`, import.meta.url), "utf8"));
}

/** An answer without what differs from run to run. */
export function normal(text: string, origin: string): unknown {
  return JSON.parse(
    text
      .replaceAll(/"created":\d+/g, '"created":0')
      .replaceAll(/[0-9a-f]{32}/g, "ID")
      .replaceAll(origin, "ORIGIN"),
  );
}
