// A link to a draft server in the same process: the same session and the same answers as over a
// socket, without frames. Messages are handed over, not copied: logs only ever grow behind their end.

import type { Dial, Link, LinkEvents, LinkSend } from "./link.ts";
import type { ClientMessage } from "./message.ts";
import type { DraftServer } from "./server.ts";
import { DraftSession } from "./session.ts";

class LocalLink implements Link {
  readonly #session: DraftSession;
  readonly #events: LinkEvents;
  #isOpen = true;

  constructor(server: DraftServer, events: LinkEvents) {
    this.#session = new DraftSession(server);
    this.#events = events;
    events.opened();
  }

  send(message: ClientMessage): LinkSend {
    if (!this.#isOpen) return "closed";
    const answer = this.#session.receive(message);
    if (answer.kind === "reply") this.#events.received(answer.message);
    else {
      this.#isOpen = false;
      this.#events.closed(`${answer.reason}: ${answer.problem}`);
    }
    return "sent";
  }

  close(): void {
    this.#isOpen = false;
  }
}

export function localDial(server: DraftServer): Dial {
  return (events) => new LocalLink(server, events);
}
