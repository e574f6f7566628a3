// The service's contract, in one process.

import { type DraftHarness, draftServiceSuite } from "../../../test/suite/draft-service-suite.ts";
import { ManualClock } from "../../base/clock.ts";
import type { Dial, LinkEvents } from "./link.ts";
import { localDial } from "./local-link.ts";
import { DraftServer } from "./server.ts";

draftServiceSuite("in process", async (limits): Promise<DraftHarness> => {
  const clock = new ManualClock(1000);
  let instanceId = 1;
  const newServer = () => {
    instanceId += 1;
    return new DraftServer({ clock, instanceId, ...(limits && { limits }) });
  };
  let server: DraftServer | null = newServer();
  let last = server;
  const links = new Set<{ close(): void; events: LinkEvents }>();
  const cut = () => {
    for (const link of links) {
      link.close();
      link.events.closed("cut");
    }
    links.clear();
  };
  const dial: Dial = (events) => {
    if (server === null) {
      events.closed("nobody listens");
      return { send: () => "closed", close: () => {} };
    }
    const link = localDial(server)(events);
    const entry = { close: () => link.close(), events };
    links.add(entry);
    const close = () => {
      links.delete(entry);
      link.close();
    };
    return { send: (message) => link.send(message), close };
  };
  return {
    dial,
    nowMs: () => clock.nowMs(),
    advance: (ms) => clock.advance(ms),
    step: async () => clock.advance(1),
    stats: () => last.stats(),
    cut,
    stop: async () => {
      server = null;
      cut();
    },
    start: async () => {
      server = newServer();
      last = server;
    },
    close: async () => {},
  };
});
