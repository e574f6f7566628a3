// Attacks who may call: every route and socket with no token, a wrong one and a token that is nearly right; what needs no
// token, with bodies and questions of strangers; paths outside of the folders of weights, through every dialect that takes
// one; and what a page in a browser on the same machine can send, to a sidecar without a token and a draft server.

import { beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { cpSync, mkdirSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { ADAPTER_CONTROL } from "../../../src/adapters/list.ts";
import { routeTable } from "../../../src/compose/features.ts";
import { BUNDLED_MODEL } from "../../../src/host/installation.ts";
import { engineMissing } from "../../e2e/tool.ts";
import { engineTest } from "../../suite/engine-test.ts";
import { temporaryFolder } from "../../suite/temporary-folder.ts";
import { until } from "../http-client.ts";
import { ToolProcess } from "../process.ts";
import { servedTool } from "../served-tool.ts";
import { rounds } from "./scale.ts";
import { dialled, socketStatus } from "./sockets.ts";

setDefaultTimeout(180_000);

const scratch = temporaryFolder("access");
const root = join(scratch, "root");
const outside = join(scratch, "outside");

const bearer = (token: string | null): Record<string, string> =>
  token === null ? {} : { authorization: `Bearer ${token}` };

const ROUTES = routeTable().map(({ method, path, right }) => {
  return { method, path: path.replace(/:\w+/g, "0"), isOpen: right === "open" };
});
const OPEN = ROUTES.filter(({ isOpen }) => isOpen);

/** Adapters' calls that pause, say which weights come by a transfer, or check them. */
const WITHOUT_PATH =
  /flush_cache|generation$|memory_occupation$|_group$|_from_(distributed|tensor)$|(begin|end)_weight_update|pull_weights|weights(_checker)?$|_meta(_lora)?$|_xccl$|finish_session|init_broadcaster|unload_/;

/** Paths that exist here, that do not, and links whose targets a stranger would like to know. */
const PATHS = [
  "/proc/self/cwd",
  "/proc/self/exe",
  "/proc/self/fd/1",
  "/etc/passwd",
  "/no/such",
  root,
];

describe.skipIf(engineMissing() !== null)("callers", () => {
  beforeAll(() => {
    for (const folder of [root, outside]) {
      mkdirSync(folder);
      cpSync(BUNDLED_MODEL, join(folder, "model.gguf"));
    }
    symlinkSync(outside, join(root, "link"));
    symlinkSync(join(outside, "model.gguf"), join(root, "link.gguf"));
  });

  const server = servedTool("--api-token", "writes", "--weights-root", root);

  const status = async (method: string, path: string, token: string | null) => {
    const body = method === "POST" ? "{}" : null;
    const answer = await server().http.call(path, { method, body, headers: bearer(token) });
    await answer.body?.cancel();
    return answer.status;
  };

  test("rights: without a token, or with a wrong one, there is nothing but health", async () => {
    for (const { method, path, isOpen } of ROUTES) {
      for (const token of [null, "guess"]) {
        const got = await status(method, path, token);
        expect([method, path, got]).toEqual([method, path, isOpen ? got : 401]);
        if (isOpen) expect(got).toBe(200);
      }
    }
    expect(await status("GET", "/no/such/route", null)).toBe(401);
    expect(await status("GET", "/no/such/route", "writes")).toBe(404);
  });

  test("rights: a token that is nearly the right one is none", async () => {
    const near = ["", "write", "writess", "WRITES", "writes\0", "writes ", "Bearer writes"];
    for (const token of near) {
      const got = await server().http.status(`/workers?token=${encodeURIComponent(token)}`);
      expect([token, got]).toEqual([token, 401]);
    }
    expect(await status("GET", "/workers", "writes")).toBe(200);
  });

  test("rights: another spelling of a path gives no other right", async () => {
    const spellings = ["//pause", "/pause/", "/./pause", "/x/../pause", "/%70ause", "/PAUSE"];
    for (const path of [...spellings, "/pause?x=/health", "/health/../pause", "/pause#/health"]) {
      expect([401, 404]).toContain(await status("POST", path, null));
    }
    const paused = await server().http.call("/is_paused", { headers: bearer("writes") });
    expect(await paused.json()).toMatchObject({ is_paused: false });
    for (const method of ["HEAD", "PUT", "PATCH"]) {
      expect(await status(method, "/pause", null)).toBe(401);
    }
  });

  test("rights: both sockets open with the token alone", async () => {
    for (const path of ["/v1/stream", "/v1/draft"]) {
      expect(await socketStatus(`${server().url}${path}`)).toBe(401);
      expect(await socketStatus(`${server().url}${path}?token=guess`)).toBe(401);
      expect(await socketStatus(`${server().url}${path}?token=writes`)).toBe(101);
    }
  });

  const calls = (path: string): [string, object][] => [
    ["/update_weights", { weight_dir: path }],
    ["/update_weights", { update_info: { weights_path: path } }],
    ["/collective_rpc", { method: "reload_weights", kwargs: { weights_path: path } }],
    ["/collective_rpc", { method: "update_weights", args: [path] }],
    ["/v1/load_lora_adapter", { lora_name: "a", lora_path: path }],
    ["/load_lora_adapter", { lora_name: "a", lora_path: path }],
    ["/areal_update_weights", { model_path: path }],
    ["/areal_update_weights_lora", { lora_name: "a", lora_model_path: path }],
    ["/update_weights_from_disk", { model_path: path }],
    ["/start_weight_update", { weight_dir: path }],
    ["/finish_weight_update", { weight_dir: path }],
  ];

  test("weights: no call and no spelling reaches a file outside of the root", async () => {
    const [known, posts] = [
      calls("").map(([route]) => route),
      ADAPTER_CONTROL.filter((row) => row.method === "POST"),
    ];
    expect(posts.filter(({ path }) => !known.includes(path) && !WITHOUT_PATH.test(path))).toEqual(
      [],
    );
    const paths = [
      ...[outside, join(outside, "model.gguf"), "/etc/passwd", "/proc/self/environ", "/dev/zero"],
      ...[join(root, "link"), join(root, "link", "model.gguf"), join(root, "link.gguf")],
      ...[`${root}/../outside/model.gguf`, `${root}/./../outside`, `file://${outside}/model.gguf`],
      ...[`${root}2/model.gguf`, `//${outside}`, `${root}/link/../outside`, "model.gguf", "~/x"],
    ];
    for (const path of paths) {
      for (const [route, body] of calls(path)) {
        const answer = await server().http.post(route, body, bearer("writes"));
        expect([route, path, answer.status]).toEqual([route, path, 400]);
        expect(await answer.text()).toContain("--weights-root");
      }
    }
    const info = await server().http.call("/weight_info", { headers: bearer("writes") });
    expect(await info.json()).toMatchObject({ weight_version: "0" });
  });

  const generates = async () => {
    const body = { prompt: "1", max_tokens: 1 };
    const answer = await server().http.post("/v1/completions", body, bearer("writes"));
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
    for (const { method, path } of OPEN) {
      expect(await answerTo(`${method} ${path} HTTP/1.1`, body)).toStartWith("HTTP/1.1 200");
    }
    const posts = ROUTES.filter(({ method }) => method === "POST");
    for (const { path } of posts.slice(0, rounds(8, posts.length))) {
      const head = `POST ${path} HTTP/1.1`;
      expect(await answerTo(`${head}\r\nAuthorization: Bearer guess`, body)).toMatch(
        /^HTTP\/1.1 (200|401)/,
      );
      // With the token as well: a client's gateway may repeat a header.
      await answerTo(`${head}\r\nAuthorization: Bearer writes`, body);
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
    for (const { method, path } of OPEN) {
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

const victim = servedTool();

const FOREIGN: readonly Record<string, string>[] = [
  { origin: "http://evil.example" },
  { origin: "null" },
  { origin: "http://localhost:1" },
  { host: "evil.example" },
  { host: "evil.example", origin: "http://evil.example" },
  { "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors" },
];

engineTest("browser: no route takes a request that a foreign page sent", async () => {
  const { paths } = (await victim().http.json("/openapi.json")) as {
    paths: Record<string, Record<string, unknown>>;
  };
  const wrong: string[] = [];
  for (const [path, methods] of Object.entries(paths)) {
    for (const method of [...Object.keys(methods), "options"]) {
      for (const headers of FOREIGN) {
        const answer = await victim().http.call(path.replaceAll(/\{\w+\}/g, "x"), {
          method: method.toUpperCase(),
          headers: { ...headers, "content-type": "text/plain" },
          ...(method === "post" ? { body: "{}" } : {}),
        });
        const shared = answer.headers.get("access-control-allow-origin");
        await answer.arrayBuffer();
        if (answer.status === 403 && shared === null) continue;
        wrong.push(`${method} ${path} ${JSON.stringify(headers)}: ${answer.status}`);
      }
    }
  }
  expect(wrong).toEqual([]);
  expect(await victim().http.json("/is_paused")).toMatchObject({ is_paused: false });
});

engineTest("browser: no socket opens for a foreign page", async () => {
  for (const path of ["/v1/stream", "/v1/draft"]) {
    for (const headers of FOREIGN)
      expect(await socketStatus(victim().url + path, headers)).toBe(403);
    const { origin } = victim().http.url;
    expect(await socketStatus(victim().url + path, { origin })).toBe(101);
    expect(await socketStatus(victim().url + path)).toBe(101);
  }
});

test("browser: the stand-alone draft server opens for no foreign page", async () => {
  const server = await ToolProcess.listening("draft-server", "--port", "0");
  for (const headers of FOREIGN) expect(await socketStatus(server.url, headers)).toBe(403);
  expect(await socketStatus(server.url)).toBe(101);
  server.signal("SIGTERM");
  expect(await server.exited).toBe(0);
});
