// A sidecar as its users start it, a process of its own, and what attacks on it look at:
// whether it still runs, how fast it answers, and how much memory it takes.

import { readFileSync } from "node:fs";
import { start } from "../../e2e/tool.ts";

const MIB = 2 ** 20;

export class Victim {
  readonly url: URL;
  readonly #child: ReturnType<typeof start>;
  readonly #log: string[];

  private constructor(url: URL, child: ReturnType<typeof start>, log: string[]) {
    this.url = url;
    this.#child = child;
    this.#log = log;
  }

  /** `args`: further ones of `foretoken serve`. Without a worker among them it has one embedded engine. */
  static async start(...args: string[]): Promise<Victim> {
    const engines = args.includes("--worker") ? [] : ["--llama", "1"];
    const child = start(["serve", ...engines, "--port", "0", ...args]);
    const log: string[] = [];
    void collect(child.stderr, (text) => log.push(text));
    const line = await new Promise<string>((resolve, reject) => {
      let text = "";
      const reading = collect(child.stdout, (part) => {
        text += part;
        if (text.includes("\n")) resolve(text);
      });
      void reading.then(() => reject(new Error(`it did not start: ${log.join("")}`)));
    });
    const victim = new Victim(new URL(line.trim().replace("foretoken on ", "")), child, log);
    await victim.#ready();
    return victim;
  }

  async #ready(): Promise<void> {
    for (;;) {
      const answer = await fetch(new URL("/health", this.url));
      await answer.arrayBuffer();
      if (answer.status === 200) return;
      if (this.exitCode !== null) throw new Error(`it ended: ${this.log}`);
      await Bun.sleep(20);
    }
  }

  get log(): string {
    return this.#log.join("");
  }

  /** null: it runs. */
  get exitCode(): number | null {
    return this.#child.exitCode;
  }

  get residentMib(): number {
    const [, pages] = readFileSync(`/proc/${this.#child.pid}/statm`, "utf8").split(" ");
    return (Number(pages) * 4096) / MIB;
  }

  /** `body`: JSON text, or what is to be written as such. */
  async post(path: string, body: unknown, headers: Record<string, string> = {}): Promise<Response> {
    return await fetch(new URL(path, this.url), {
      method: "POST",
      headers: { "content-type": "application/json", ...headers },
      body: typeof body === "string" ? body : JSON.stringify(body),
    });
  }

  /** A good request: the tokens of its answer, which are the same every time. */
  async goodTokens(): Promise<readonly number[]> {
    const sampling_params = { max_tokens: 16, temperature: 0, ignore_eos: true };
    const answer = await this.post("/inference/v1/generate", {
      token_ids: [11, 12, 13],
      sampling_params,
    });
    if (answer.status !== 200) throw new Error(`${answer.status}: ${await answer.text()}`);
    const { choices } = (await answer.json()) as { choices: { token_ids: number[] }[] };
    return choices[0]?.token_ids ?? [];
  }

  /** Runs `attack` and asks for /health all the while; returns the slowest answer in milliseconds. */
  async slowestHealthMs(attack: () => Promise<unknown>): Promise<number> {
    let isOver = false;
    let slowest = 0;
    const watching = (async () => {
      while (!isOver) {
        const startMs = performance.now();
        const answer = await fetch(new URL("/health", this.url));
        await answer.arrayBuffer();
        if (answer.status !== 200) throw new Error(`/health is ${answer.status}`);
        slowest = Math.max(slowest, performance.now() - startMs);
        await Bun.sleep(10);
      }
    })();
    try {
      await attack();
    } finally {
      isOver = true;
      await watching;
    }
    return slowest;
  }

  async stop(): Promise<number> {
    this.#child.kill("SIGKILL");
    return await this.#child.exited;
  }
}

async function collect(
  stream: ReadableStream<Uint8Array>,
  take: (text: string) => void,
): Promise<void> {
  const decoder = new TextDecoder();
  for await (const part of stream) take(decoder.decode(part, { stream: true }));
}
