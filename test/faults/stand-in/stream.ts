// One stream of the stand-in, and the fault that it shows. What comes after the fault is the fault's own affair.

import type { ServerResponse } from "node:http";
import type { Fault } from "./faults.ts";
import { lieOf } from "./lies.ts";

export class StandInStream {
  readonly #response: ServerResponse;
  readonly #fault: Fault | null;
  readonly #silenceMs: number;
  readonly #shown: (fault: Fault) => void;
  readonly #abort: (silently: boolean) => void;
  #hasShown = false;
  /** The stream writes nothing any more. */
  #isMute = false;
  /** An event that waits for the next one to overtake it. */
  #overtaken: string | null = null;
  /** Events that a silent stream sends later; null: it is not silent. */
  #later: string[] | null = null;

  constructor(options: {
    response: ServerResponse;
    fault: Fault | null;
    silenceMs: number;
    shown: (fault: Fault) => void;
    abort: (silently: boolean) => void;
  }) {
    this.#response = options.response;
    this.#fault = options.fault;
    this.#silenceMs = options.silenceMs;
    this.#shown = options.shown;
    this.#abort = options.abort;
  }

  begin(): void {
    this.#response.writeHead(200, { "content-type": "text/event-stream; charset=utf-8" });
    this.#response.flushHeaders();
  }

  /** `output`: tokens of the request so far, those of this event included. */
  piece(json: unknown, output: number): void {
    const fault = this.#fault;
    if (fault === null || output <= fault.afterTokens) {
      this.#write(eventText(json));
      return;
    }
    if (!this.#hasShown) this.#shown(fault);
    const lie = lieOf(fault.kind, json);
    // A liar lies to the end.
    if (lie !== null) {
      this.#hasShown = true;
      this.#write(lie);
      return;
    }
    const text = eventText(json);
    if (this.#hasShown) {
      this.#write(text);
      return;
    }
    this.#hasShown = true;
    this.#show(fault, text);
  }

  event(json: unknown): void {
    this.#write(eventText(json));
  }

  done(): void {
    this.#write("data: [DONE]\n\n");
    this.#end();
  }

  #show(fault: Fault, text: string): void {
    const { kind } = fault;
    if (kind === "mute") this.#isMute = true;
    else if (kind === "disorder") this.#overtaken = text;
    else if (kind === "flood") this.#flood();
    else if (kind === "no_reason") this.#last("data: [DONE]\n\n");
    else if (kind === "garbage") this.#last('data: {"choices":[{"token_ids":[1\n\n');
    else if (kind === "ended") this.#last("");
    else if (kind === "error_inside") {
      this.#last(eventText({ error: { message: "engine error", type: "X", code: 500 } }));
    } else if (kind === "cut" || kind === "cut_line") {
      if (kind === "cut_line") this.#write(text.slice(0, Math.floor(text.length / 2)));
      this.#break();
    } else {
      if (kind === "silence") {
        this.#later = [];
        setTimeout(() => this.#speak(), this.#silenceMs);
      }
      this.#write(text);
      if (kind === "repeat") this.#write(text);
      if (kind === "abort") this.#abort(false);
    }
  }

  #flood(): void {
    this.#isMute = true;
    const response = this.#response;
    const piece = Buffer.alloc(1 << 20, "x");
    const pour = () => {
      while (!response.destroyed && response.write(piece)) {}
    };
    response.on("drain", pour);
    pour();
  }

  /** Says this and nothing else, and ends the body as if that were all. */
  #last(text: string): void {
    this.#write(text);
    this.#response.end();
    this.#isMute = true;
    this.#abort(true);
  }

  #break(): void {
    this.#isMute = true;
    this.#abort(true);
    // Later, so that what was written before is on its way.
    setTimeout(() => this.#response.destroy(), 1);
  }

  #write(text: string): void {
    if (this.#isMute) return;
    if (this.#later !== null) {
      this.#later.push(text);
      return;
    }
    this.#response.write(text);
    if (this.#overtaken === null || this.#overtaken === text) return;
    const overtaken = this.#overtaken;
    this.#overtaken = null;
    this.#response.write(overtaken);
  }

  #end(): void {
    if (!this.#isMute && this.#later === null) this.#response.end();
    else if (this.#later !== null) this.#later.push("");
  }

  /** The silence is over. An empty text stands for the end. */
  #speak(): void {
    const texts = this.#later ?? [];
    this.#later = null;
    for (const text of texts) {
      if (text === "") this.#end();
      else this.#write(text);
    }
  }
}

function eventText(json: unknown): string {
  return `data: ${JSON.stringify(json)}\n\n`;
}
