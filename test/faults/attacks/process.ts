// Foretoken's own commands as processes under attack: where they listen, what they log, how they are ended.

import { start } from "../../e2e/tool.ts";
import { linesOf } from "../../suite/lines.ts";

export interface Attacked {
  readonly url: string;
  /** Lines of its log so far, JSON each. */
  readonly log: readonly string[];
  /** It has not ended by itself. */
  isAlive(): boolean;
  kill(): void;
}

/** Resolves when it says where it listens. */
export async function attacked(...args: string[]): Promise<Attacked> {
  const child = start([...args, "--log", "json"]);
  const log: string[] = [];
  void lines(child.stderr, (line) => log.push(line));
  const url = await new Promise<string>((resolve, reject) => {
    void lines(child.stdout, (line) => {
      const [, found] = /^(?:foretoken|worker) on (\S+)/.exec(line) ?? [];
      if (found !== undefined) resolve(found);
    });
    void child.exited.then((code) => reject(new Error(`ended with ${code}: ${log.join("\n")}`)));
  });
  return {
    url,
    log,
    isAlive: () => child.exitCode === null && child.signalCode === null,
    kill: () => child.kill("SIGKILL"),
  };
}

async function lines(stream: ReadableStream<Uint8Array>, take: (line: string) => void) {
  for await (const line of linesOf(stream)) take(line);
}
