// Pipelines requests on one connection. Answers that come are whole and in the order of their requests. Behind an answer
// that is not ready yet the server closes the connection (docs/RELIABILITY.md): nothing runs on there, no other client
// notices, and what was not answered is answered when it is asked for again.

import { expect, setDefaultTimeout } from "bun:test";
import { engineTest } from "../../suite/engine-test.ts";
import { until } from "../http-client.ts";
import { servedTool } from "../served-tool.ts";
import { rounds } from "./scale.ts";
import { dialled } from "./sockets.ts";

setDefaultTimeout(180_000);

const server = servedTool();

const GET = "GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";

function post(path: string, fields: object): string {
  const body = JSON.stringify(fields);
  return `POST ${path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
}

const bodyOf = (round: number, n: number) => ({
  prompt: `${n}`,
  max_tokens: n % 2 === 0 ? 200 : 1,
  ignore_eos: true,
  seed: n,
  request_id: `pipe-${round}-${n}`,
});

const statuses = (text: string) => text.match(/HTTP\/1\.1 \d+/g) ?? [];

engineTest("pipeline: requests that are answered at once are all answered", async () => {
  const one = dialled(server().http.url);
  const tokenize = post("/tokenize", { prompt: "a" });
  one.socket.write(GET.repeat(20) + tokenize + GET + tokenize.repeat(2));
  await until(
    () => statuses(one.text).length === 24,
    () => one.text,
  );
  one.socket.destroy();
});

engineTest(
  "pipeline: generations are answered in order or not at all, and can be asked for again",
  async () => {
    for (let round = 0; round < rounds(3, 50); round += 1) {
      const count = 2 + (round % 19);
      const asked = Array.from({ length: count }, (_, n) => bodyOf(round, n));
      const one = dialled(server().http.url);
      const bytes = asked.map((body) => post("/v1/completions", body)).join("");
      one.socket.write(bytes);
      const seen = () => [...one.text.matchAll(/cmpl-pipe-\d+-(\d+)"/g)].map(([, n]) => Number(n));
      await Promise.race([
        one.ended,
        until(
          () => seen().length === count,
          () => one.text,
        ),
      ]);
      one.socket.destroy();
      expect(seen()).toEqual(Array.from({ length: seen().length }, (_, n) => n));
      const idle = async () => (await server().http.metric("foretoken_requests_unfinished")) === 0;
      await until(idle, "what the closed connection asked for has ended");
      for (const [n, body] of asked.entries()) {
        const again = await server().http.post("/v1/completions", body);
        const answer = (await again.json()) as { id: string; usage: { completion_tokens: number } };
        expect(answer).toMatchObject({
          id: `cmpl-pipe-${round}-${n}`,
          usage: { completion_tokens: body.max_tokens },
        });
      }
    }
  },
);
