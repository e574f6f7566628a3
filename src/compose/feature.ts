// The interface of a feature of the server: features.ts has a row for each.

import type { Served } from "../server/http.ts";
import type { Kept } from "../server/kept.ts";
import type { Route } from "../server/route.ts";
import type { SidecarReader } from "../server/sidecar.ts";
import type { OperatorLog } from "./operator-log.ts";

export interface Feature {
  readonly routes?: readonly Route[];
  readonly sockets?: Served["sockets"];
  /** Reader of requests' events. */
  readonly observer?: SidecarReader;
  /** Reader of the server's events, beside the operator. */
  readonly log?: Partial<OperatorLog>;
  /** Memory kept for finished work, by kind: /metrics shows it. */
  readonly kept?: Readonly<Record<string, () => Kept>>;
  /** Called when all requests have ended and no new one can begin. */
  readonly drained?: () => void;
  /** Called when the server stops, before the rollout does. */
  readonly close?: () => void;
  /** Called when the rollout has stopped, while connections are still open. */
  readonly stopped?: () => Promise<void>;
}
