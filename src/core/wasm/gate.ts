// Lets one call at a time into a core instance. A call that trapped has left the core's memory half written, so no call is
// let in after it.

import { AppError } from "../base/errors.ts";

export class Gate {
  #inside: string | null = null;

  /**
   * Call before each call that changes the core. @throws AppError core_trap: another call has not returned, or has
   * trapped.
   */
  enter(call: string): void {
    if (this.#inside !== null) this.#refuse(call);
    this.#inside = call;
  }

  /** Call after the call has returned. */
  leave(): void {
    this.#inside = null;
  }

  #refuse(call: string): never {
    const message = `core ${call}: refused, since the core is in ${this.#inside} or gave up in it`;
    throw new AppError("core_trap", message);
  }
}
