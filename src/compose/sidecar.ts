// A sidecar out of its parts and features, with or without a server in front of it: it opens its engines, runs, and ends
// in order.

import { openPool } from "../host/embedded-pool.ts";
import { openRunFiles } from "../host/journal-file.ts";
import { PromptHistory } from "../server/history/prompt-history.ts";
import type { Served } from "../server/http.ts";
import { featuresOf } from "./features.ts";
import { OperatorFeed } from "./operator-log.ts";
import type { ComposeOptions, RunningSidecar } from "./options.ts";
import { type Front, type Parts, partsOf, type Resources } from "./parts.ts";

/** What surrounds a sidecar: the operator that it reports to, and the server in front of it. */
interface Around {
  readonly feed: OperatorFeed;
  /** The HTTP server; null: there is none, and the sidecar is used in this process alone. */
  readonly front: Front | null;
}

/**
 * Opens a sidecar, which opens its engines from now on. `around`: default: nothing is in front of it.
 * @throws AppError invalid_config: a file or a folder cannot be used; and as `composeSidecar`.
 */
export async function openSidecar(
  options: ComposeOptions,
  around: Around = { feed: new OperatorFeed(options.events), front: null },
): Promise<ComposedSidecar> {
  const {
    historyBytes: limitBytes = 0,
    poolMemoryBytes = 0,
    poolDiskBytes = 0,
    poolDir = null,
    journal = null,
  } = options;
  const { log } = around.feed;
  const journals = journal === null ? null : openRunFiles(journal, log.journalFailed);
  try {
    const history =
      limitBytes === 0 ? null : new PromptHistory({ limitBytes, model: options.model.names[0] });
    const kv = await openPool({ poolMemoryBytes, poolDiskBytes, poolDir });
    return composeSidecar(options, { ...around, kv, history, journals });
  } catch (error) {
    await journals?.release();
    throw error;
  }
}

/** A sidecar that runs, and what a server in front of it needs. */
export interface ComposedSidecar extends RunningSidecar, Pick<Parts, "kv" | "encoder" | "chats"> {
  readonly served: Pick<Served, "routes" | "sockets">;
  /** Stops the sidecar. `hangUp` is called when requests have ended, before the parts that answer them are closed. */
  stop(hangUp?: () => Promise<void>): Promise<void>;
}

/** Builds a sidecar and starts it. @throws AppError: the core cannot be loaded, or a journal is of something else. */
export function composeSidecar(
  options: ComposeOptions,
  opened: Resources & Around,
): ComposedSidecar {
  const parts = partsOf(options, opened);
  const { sidecar, pool, encoder, timers, kv, journals } = parts;
  const { features, rollouts } = featuresOf(parts);
  for (const { observer, log } of features) {
    if (observer !== undefined) sidecar.observe(observer);
    if (log !== undefined) opened.feed.add(log);
  }
  const all = pool.open();
  opened.front?.registry.attach(pool);
  // Callers that await it get the error; an unhandled rejection would end the process.
  all.catch(() => undefined);
  return {
    sidecar,
    rollouts,
    kv,
    encoder,
    chats: parts.chats,
    served: {
      routes: features.flatMap((feature) => feature.routes ?? []),
      sockets: Object.assign({}, ...features.map((feature) => feature.sockets)),
    },
    opened: all,
    hasStarted: () => pool.hasStarted,
    drain: async () => {
      await sidecar.drain();
      for (const { drained } of features) drained?.();
    },
    stop: async (hangUp = async () => {}) => {
      for (const { close } of features) close?.();
      sidecar.rollout.stop();
      await Promise.all(features.map(({ stopped }) => stopped?.()));
      await journals?.release();
      await hangUp();
      encoder.close();
      await pool.close();
      await kv.close();
      timers.stop();
    },
  };
}
