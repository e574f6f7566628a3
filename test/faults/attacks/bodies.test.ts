// Attacks memory and patience with bodies: held back, trickled, too long, packed many times over, cut, and heads
// that never end. All the while /health answers, memory has a bound, and a good request is answered as before.

import { expect, setDefaultTimeout } from "bun:test";
import { gzipSync, zstdCompressSync } from "node:zlib";
import { engineTest } from "../../suite/engine-test.ts";
import { servedTool } from "../served-tool.ts";
import { rounds } from "./scale.ts";
import { dialled } from "./sockets.ts";

setDefaultTimeout(180_000);

const MB = 1_000_000;

const victim = servedTool();

const dial = () => dialled(victim().http.url);

function head(length: number | null, more = ""): string {
  const size = length === null ? "Transfer-Encoding: chunked" : `Content-Length: ${length}`;
  return `POST /v1/completions HTTP/1.1\r\nHost: ${victim().http.url.host}\r\n${size}\r\n${more}\r\n`;
}

/** Memory grows by `mibMax` at most: the budget is 128 MiB, the rest is what the garbage collector has not yet taken. */
function attack(name: string, mibMax: number, act: () => Promise<unknown>): void {
  engineTest(name, async () => {
    expect(await victim().survives(act)).toBeLessThan(mibMax);
  });
}

attack(
  "bodies: forty of 30 MB, all held before their end, take what the budget says",
  700,
  async () => {
    const piece = Buffer.alloc(64 * 1024, 0x20);
    const connections = Array.from({ length: 40 }, () => {
      const connection = dial();
      connection.socket.write(head(30 * MB));
      return connection;
    });
    await Promise.all(
      connections.map(async ({ socket, ended }) => {
        for (let sent = 0; sent < 30 * MB - MB && !socket.destroyed; sent += piece.length) {
          if (socket.write(piece)) continue;
          await Promise.race([new Promise((resolve) => socket.once("drain", resolve)), ended]);
        }
        await ended;
      }),
    );
    const statuses = connections.map(({ text }) => text.slice(9, 12));
    expect(new Set(statuses)).toEqual(new Set(["408", "429"]));
    for (const { text } of connections) {
      expect(text.toLowerCase()).toContain("connection: close");
      if (text.startsWith("HTTP/1.1 429")) expect(text.toLowerCase()).toContain("retry-after: 1");
    }
  },
);

attack("bodies: a trickle, a stop and a chunk that never ends are a 408 in time", 900, async () => {
  const [stopped, chunked, trickled] = [dial(), dial(), dial()];
  stopped.socket.write(`${head(100)}{`);
  chunked.socket.write(`${head(null)}5\r\n{"a":\r\n`);
  trickled.socket.write(head(100));
  const timer = setInterval(() => trickled.socket.write(" "), 200);
  await Promise.all([stopped.ended, chunked.ended, trickled.ended]);
  clearInterval(timer);
  for (const { text } of [stopped, chunked, trickled]) {
    expect(text).toStartWith("HTTP/1.1 408");
  }
});

attack("bodies: bombs are refused before they are whole", 900, async () => {
  const zeros = Buffer.alloc(200 * MB);
  const bombs = [
    { encoding: "gzip", body: gzipSync(zeros) },
    { encoding: "zstd", body: zstdCompressSync(zeros) },
  ];
  for (const { encoding, body } of bombs) {
    const answers = await Promise.all(
      Array.from({ length: rounds(8, 40) }, () =>
        fetch(new URL("/v1/completions", victim().http.url), {
          method: "POST",
          headers: { "content-encoding": encoding },
          body,
        }),
      ),
    );
    for (const answer of answers) {
      expect([413, 429]).toContain(answer.status);
      await answer.arrayBuffer();
    }
  }
});

attack(
  "bodies: what is mostly brackets, names or texts is refused before it is parsed",
  700,
  async () => {
    const list = (item: string) => `[${`${item},`.repeat((30 * MB) / (item.length + 1))}${item}]`;
    const names = Array.from({ length: 2 * MB }, (_, i) => `"${i}":1`).join(",");
    const bodies = [list("{}"), list("[]"), list('""'), list('{"a":"b"}'), `{${names}}`];
    const paths = ["/v1/completions", "/v1/rollouts", "/update_weights"];
    for (const body of bodies.slice(0, rounds(3, bodies.length))) {
      for (const path of paths.slice(0, rounds(1, paths.length))) {
        const answer = await victim().http.post(path, body);
        expect(answer.status).toBe(400);
        expect(await answer.text()).toContain("more than 524288 objects, lists and texts");
      }
    }
  },
);

attack(
  "bodies: 30 MB of numbers are read beside everybody else, and refused as short ones are",
  900,
  async () => {
    const many = (item: string) => `${`${item},`.repeat((30 * MB) / (item.length + 1))}${item}`;
    const few = (item: string) => `${`${item},`.repeat(200)}${item}`;
    const bodies: [string, (items: typeof many) => string, string][] = [
      ["/v1/completions", (items) => `{"prompt":[${items("11")}]}`, "maximum context length"],
      ["/v1/completions", (items) => `{"prompt":[[${items("11")}]]}`, "maximum context length"],
      [
        "/inference/v1/generate",
        (items) => `{"token_ids":[${items("-1")}]}`,
        "holds -1 at index 0",
      ],
      ["/v1/completions", (items) => `{"prompt":[${items("1.5")}]}`, "prompt is [1.5,1.5"],
      ["/v1/completions", (items) => `{"prompt":[${items("11")}`, "is not JSON"],
      [
        "/v1/completions",
        (items) => `{"prompt":[1],"best":[${items("1")}]}`,
        "best is not a field",
      ],
      ["/generate", (items) => `{"input_ids":[${items("11")},"a"]}`, "not a list of token ids"],
      ["/detokenize", (items) => `{"tokens":[${items("99999")}]}`, "tokens holds token"],
      [
        "/v1/rollouts",
        (items) => `{"groups":[{"id":"a","token_ids":[${items("0")}]}]}`,
        "max_tokens",
      ],
      ["/v1/chat/completions", (items) => `{"messages":[${items("11")}]}`, "messages"],
    ];
    const told = async (path: string, body: string) => {
      const answer = await victim().http.post(path, body);
      return { status: answer.status, text: (await answer.text()).replaceAll(/\d{4,}/g, "N") };
    };
    for (const [path, write, problem] of bodies.slice(0, rounds(3, bodies.length))) {
      const long = await told(path, write(many));
      expect(long.text).toContain(problem);
      // A short prompt of good tokens is a good one.
      if (problem !== "maximum context length") expect(long).toEqual(await told(path, write(few)));
    }
  },
);

attack("heads: one that never ends is cut", 900, async () => {
  if (rounds(0, 1) === 0) return;
  const connections = [
    "",
    "POST / HT",
    `POST / HTTP/1.1\r\nHost: ${victim().http.url.host}\r\nX-A: b`,
  ].map((text) => {
    const connection = dial();
    connection.socket.write(text);
    return connection;
  });
  await Promise.all(connections.map(({ ended }) => ended));
});
