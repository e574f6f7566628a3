// A client of a sidecar over HTTP, for tests, attacks and chaos runs. Every call has a deadline.

/** Deadline of an answer on a busy machine. */
export const ANSWER_MS_MAX = 120_000;

export interface WorkerEntry {
  readonly name: string;
  readonly state: string;
  readonly reason: string | null;
  readonly weights: string | null;
  readonly weight_version?: string;
}

export interface Choice {
  readonly index: number;
  readonly token_ids: number[];
  readonly weight_versions: { version: string; start: number; end: number }[];
}

export class HttpClient {
  readonly url: URL;

  constructor(url: URL | string) {
    this.url = new URL(url);
  }

  async call(path: string, init: RequestInit = {}): Promise<Response> {
    const signal = AbortSignal.timeout(ANSWER_MS_MAX);
    return await fetch(this.url.origin + path, { signal, ...init });
  }

  async get(path: string): Promise<{ status: number; text: string }> {
    const answer = await this.call(path);
    return { status: answer.status, text: await answer.text() };
  }

  async json(path: string): Promise<unknown> {
    return await (await this.call(path)).json();
  }

  /** `body`: JSON text, or the value of it. */
  async post(path: string, body: unknown, headers: Record<string, string> = {}): Promise<Response> {
    return await this.call(path, {
      method: "POST",
      headers: { "content-type": "application/json", ...headers },
      body: typeof body === "string" ? body : JSON.stringify(body),
    });
  }

  /** Status and text of the answer to a POST. */
  async ask(path: string, body: unknown): Promise<{ status: number; text: string }> {
    const answer = await this.post(path, body);
    return { status: answer.status, text: await answer.text() };
  }

  async status(path: string): Promise<number> {
    const answer = await this.call(path);
    await answer.arrayBuffer();
    return answer.status;
  }

  async workers(): Promise<readonly WorkerEntry[]> {
    return ((await this.json("/foretoken/workers")) as { workers: WorkerEntry[] }).workers;
  }

  async isServing(): Promise<boolean> {
    return (await this.workers()).every(({ state }) => state === "ready");
  }

  /** The first sample of the metric whose labels contain `label`. */
  async metric(name: string, label = ""): Promise<number> {
    const text = await (await this.call("/metrics")).text();
    const line = text.split("\n").find((one) => one.startsWith(name) && one.includes(label));
    return Number(line?.split(" ").at(-1));
  }

  /** @throws a status other than 200. */
  async choices(prompt: readonly number[], params: object, more: object = {}): Promise<Choice[]> {
    const body = { token_ids: prompt, sampling_params: params, ...more };
    const { status, text } = await this.ask("/inference/v1/generate", body);
    if (status !== 200) throw new Error(`${status}: ${text}`);
    return (JSON.parse(text) as { choices: Choice[] }).choices;
  }

  /** Tokens of one response. */
  async tokens(prompt: readonly number[], params: object): Promise<readonly number[]> {
    return (await this.choices(prompt, params))[0]?.token_ids ?? [];
  }
}

const POLL_MS = 5;

/** Resolves when it is true. What is waited for comes in far less time, on any machine. */
export async function until(
  isTrue: () => boolean | Promise<boolean>,
  what: string | (() => string),
  msMax = 120_000,
): Promise<void> {
  const endMs = performance.now() + msMax;
  while (!(await isTrue())) {
    if (performance.now() > endMs) {
      throw new Error(`not within ${msMax} ms: ${typeof what === "string" ? what : what()}`);
    }
    await Bun.sleep(POLL_MS);
  }
}
