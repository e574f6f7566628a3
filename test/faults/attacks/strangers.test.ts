// Attacks without the token what needs none: every open route, with lengths that contradict the head, with slow bodies and
// with questions in the query. Clients with the token are served as before, and a stranger learns nothing.

import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { routeTable } from "../../../src/compose/features.ts";
import { engineMissing } from "../../e2e/tool.ts";
import { temporaryFolder } from "../../suite/temporary-folder.ts";
import { until } from "../http-client.ts";
import { servedTool } from "../served-tool.ts";
import { rounds } from "./scale.ts";
import { dialled } from "./sockets.ts";

setDefaultTimeout(180_000);

const root = temporaryFolder("strangers");
/** Paths that exist here, that do not, and links whose targets a stranger would like to know. */
const PATHS = [
  "/proc/self/cwd",
  "/proc/self/exe",
  "/proc/self/fd/1",
  "/etc/passwd",
  "/no/such",
  root,
];
const open = routeTable().filter(({ right }) => right === "open");

describe.skipIf(engineMissing() !== null)("strangers", () => {
  const server = servedTool("--api-token", "secret", "--weights-root", root);

  const generates = async () => {
    const headers = { authorization: "Bearer secret" };
    const answer = await server().http.post(
      "/v1/completions",
      { prompt: "1", max_tokens: 1 },
      headers,
    );
    await answer.arrayBuffer();
    return answer.status;
  };

  /** Answer to a head, with `body` behind it. */
  const answerTo = async (head: string, body: string): Promise<string> => {
    const one = dialled(server().http.url);
    one.socket.write(`${head}\r\nHost: 127.0.0.1\r\n${body}`);
    await until(() => one.text.includes("\r\n\r\n"), head);
    one.socket.destroy();
    return one.text;
  };

  test("strangers: two lengths of one body keep no later body out", async () => {
    const body = "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}";
    for (const { method, path } of open) {
      expect(await answerTo(`${method} ${path} HTTP/1.1`, body)).toStartWith("HTTP/1.1 200");
    }
    const posts = routeTable().filter(({ method }) => method === "POST");
    for (const { path } of posts.slice(0, rounds(8, posts.length))) {
      const head = `POST ${path.replace(/:\w+/g, "0")} HTTP/1.1`;
      expect(await answerTo(`${head}\r\nAuthorization: Bearer guess`, body)).toMatch(
        /^HTTP\/1.1 (200|401)/,
      );
      // With the token as well: a client's gateway may repeat a header.
      await answerTo(`${head}\r\nAuthorization: Bearer secret`, body);
      expect([path, await generates()]).toEqual([path, 200]);
    }
  });

  test("strangers: slow bodies on open routes take no room from those of clients", async () => {
    const slow = Array.from({ length: rounds(100, 400) }, () => {
      const one = dialled(server().http.url);
      one.socket.write("POST /ping HTTP/1.1\r\nHost: a\r\nContent-Length: 1048576\r\n\r\n");
      one.socket.write(" ".repeat(70_000));
      return one;
    });
    await until(() => slow.every(({ text }) => text.startsWith("HTTP/1.1 200")), "answers");
    expect(await generates()).toBe(200);
    for (const { socket } of slow) socket.destroy();
  });

  test("strangers: a path in a query or a body is neither looked at nor answered", async () => {
    for (const { method, path } of open) {
      const plain = await server().http.call(path, { method });
      const told = [plain.status, await plain.text()];
      for (const asked of PATHS) {
        const query = `?path=${asked}&model_path=${asked}`;
        const body = method === "POST" ? JSON.stringify({ path: asked }) : null;
        const answer = await server().http.call(path + query, { method, body });
        expect([asked, answer.status, await answer.text()]).toEqual([asked, ...told]);
      }
    }
  });
});
