// The row of workers of ours on other machines (`foretoken worker`) in the table of engines.

import type { EngineKind } from "../kind.ts";
import { newIdentity, openLinkWorker } from "./worker.ts";

export const LINK: EngineKind = {
  schemes: ["ws", "wss"],
  form: "ws://HOST:PORT",
  server: null,
  opener: (url, { token, clock }) => {
    // One for all sessions of the opener: a new one takes the place of the last, should the host still have it.
    const sidecar = newIdentity();
    return async ({ epoch, ...options }) => {
      const worker = await openLinkWorker({ ...options, token, url, clock, sidecar });
      // A host that served another sidecar before counts from its own epochs.
      if (worker.epoch !== epoch) worker.send([{ kind: "advance", epoch }]);
      return worker;
    };
  },
};
