// Lets one call at a time into a core instance. A call that did not return has left the core's memory half written, so
// none is let in after it either.

import { AppError } from "../base/errors.ts";

export class Gate {
  #inside: string | null = null;

  /**
   * Called before each call that changes the core. @throws AppError core_trap: another call is inside, or gave up
   * there.
   */
  enter(call: string): void {
    if (this.#inside !== null) this.#refuse(call);
    this.#inside = call;
  }

  /** The call has returned. */
  leave(): void {
    this.#inside = null;
  }

  #refuse(call: string): never {
    const message = `core ${call}: refused, since the core is in ${this.#inside} or gave up in it`;
    throw new AppError("core_trap", message);
  }
}
