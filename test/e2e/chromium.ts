// Drives a page in headless Chromium over its debugging protocol: enough to type, click, evaluate and take pictures.

const START_MS_MAX = 120_000;

export const CHROMIUM =
  Bun.which("chromium") ?? Bun.which("chromium-browser") ?? Bun.which("google-chrome");
export const NO_CHROMIUM = CHROMIUM === null ? " (skipped: needs Chromium)" : "";

interface Reply {
  readonly id?: number;
  readonly result?: Record<string, unknown>;
  readonly error?: { readonly message: string };
}

export class Page {
  readonly #child: ReturnType<typeof Bun.spawn>;
  readonly #socket: WebSocket;
  readonly #waiting = new Map<number, (reply: Reply) => void>();
  #next = 0;

  private constructor(child: ReturnType<typeof Bun.spawn>, socket: WebSocket) {
    this.#child = child;
    this.#socket = socket;
    socket.onmessage = ({ data }) => {
      const reply: Reply = JSON.parse(String(data));
      if (reply.id !== undefined) this.#waiting.get(reply.id)?.(reply);
    };
  }

  /** `window`: its size in CSS pixels. */
  static async open(url: string, window = { width: 1240, height: 1100 }): Promise<Page> {
    const child = Bun.spawn(
      [
        CHROMIUM ?? "",
        ...["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"],
        ...[`--window-size=${window.width},${window.height}`, "about:blank"],
      ],
      { stdout: "ignore", stderr: "pipe" },
    );
    const port = await portOf(child.stderr);
    const targets = await fetch(`http://127.0.0.1:${port}/json/list`);
    const [target] = (await targets.json()) as { webSocketDebuggerUrl: string }[];
    const socket = new WebSocket(target?.webSocketDebuggerUrl ?? "");
    await new Promise((resolve, reject) => {
      socket.onopen = resolve;
      socket.onerror = reject;
    });
    const page = new Page(child, socket);
    await page.call("Emulation.setDeviceMetricsOverride", {
      ...window,
      deviceScaleFactor: 1,
      mobile: false,
    });
    await page.call("Page.navigate", { url });
    return page;
  }

  async call(method: string, params: object = {}): Promise<Record<string, unknown>> {
    this.#next += 1;
    const id = this.#next;
    const reply = await new Promise<Reply>((resolve) => {
      this.#waiting.set(id, resolve);
      this.#socket.send(JSON.stringify({ id, method, params }));
    });
    this.#waiting.delete(id);
    if (reply.error !== undefined) throw new Error(`${method}: ${reply.error.message}`);
    return reply.result ?? {};
  }

  /** The value of an expression, or of the promise that it is. */
  async evaluate<T>(expression: string): Promise<T> {
    const options = { expression, awaitPromise: true, returnByValue: true };
    const { result, exceptionDetails } = (await this.call("Runtime.evaluate", options)) as {
      result: { value: T };
      exceptionDetails?: { exception?: { description?: string } };
    };
    if (exceptionDetails !== undefined) throw new Error(exceptionDetails.exception?.description);
    return result.value;
  }

  /** Resolves when the expression is true. */
  async until(expression: string, msMax = 60_000): Promise<void> {
    const endMs = performance.now() + msMax;
    while (!(await this.evaluate<boolean>(`Boolean(${expression})`).catch(() => false))) {
      if (performance.now() > endMs) throw new Error(`not within ${msMax} ms: ${expression}`);
      await Bun.sleep(50);
    }
  }

  async press(key: string): Promise<void> {
    const text = key === "Enter" ? { text: "\r" } : {};
    await this.call("Input.dispatchKeyEvent", { type: "keyDown", key, code: key, ...text });
    await this.call("Input.dispatchKeyEvent", { type: "keyUp", key, code: key });
  }

  /** A click of the mouse, `x` and `y` pixels into the element. */
  async click(id: string, { x = 5, y = 5 } = {}): Promise<void> {
    const box = `(() => {
      const element = document.getElementById(${JSON.stringify(id)});
      element.scrollIntoView({ block: "center" });
      const { x, y } = element.getBoundingClientRect();
      return { x, y };
    })()`;
    const at = await this.evaluate<{ x: number; y: number }>(box);
    const where = { x: at.x + x, y: at.y + y, button: "left", clickCount: 1 };
    for (const type of ["mousePressed", "mouseReleased"]) {
      await this.call("Input.dispatchMouseEvent", { type, ...where });
    }
  }

  async close(): Promise<void> {
    this.#socket.close();
    this.#child.kill();
    await this.#child.exited;
  }
}

async function portOf(stderr: ReadableStream<Uint8Array>): Promise<number> {
  const signal = AbortSignal.timeout(START_MS_MAX);
  let text = "";
  const reader = stderr.getReader();
  while (!signal.aborted) {
    const { value, done } = await reader.read();
    if (done) break;
    text += new TextDecoder().decode(value);
    const [, port] = /DevTools listening on ws:\/\/[^:]+:(\d+)/.exec(text) ?? [];
    if (port !== undefined) {
      reader.releaseLock();
      return Number(port);
    }
  }
  throw new Error(`Chromium did not start: ${text}`);
}
