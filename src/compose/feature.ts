// The interface of a feature of the server: features.ts has a row for each.

import type { Served } from "../server/http.ts";
import type { Kept } from "../server/kept.ts";
import type { Route } from "../server/route.ts";
import type { SidecarReader } from "../server/sidecar.ts";
import type { OperatorLog } from "./operator-log.ts";

export interface Feature {
  readonly routes?: readonly Route[];
  readonly sockets?: Served["sockets"];
  /** Events of requests. */
  readonly observer?: SidecarReader;
  /** Events of the server that it reads beside the operator. */
  readonly log?: Partial<OperatorLog>;
  /** Memory kept for finished work, by kind: /metrics shows it. */
  readonly kept?: Readonly<Record<string, () => Kept>>;
  /** All requests have ended, and no new one comes. */
  readonly drained?: () => void;
  /** The server stops: before the rollout does. */
  readonly close?: () => void;
  /** The rollout has stopped, and connections are open. */
  readonly stopped?: () => Promise<void>;
}
