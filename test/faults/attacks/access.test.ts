// Attacks who may call: every route and socket with no token and with a wrong one; paths outside of the
// folders of weights, through every dialect that takes one; certificates that are missing, damaged or of another key.

import { beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { cpSync, mkdirSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { ADAPTER_CONTROL } from "../../../src/adapters/list.ts";
import { routeTable } from "../../../src/compose/features.ts";
import { BUNDLED_MODEL } from "../../../src/host/installation.ts";
import { engineMissing } from "../../e2e/tool.ts";
import { temporaryFolder } from "../../suite/temporary-folder.ts";
import { servedTool } from "../served-tool.ts";
import { socketStatus } from "./sockets.ts";

setDefaultTimeout(180_000);

const scratch = temporaryFolder("access");

function bearer(token: string | null): Record<string, string> {
  return token === null ? {} : { authorization: `Bearer ${token}` };
}

describe.skipIf(engineMissing() !== null)("rights", () => {
  const server = servedTool("--api-token", "writes");

  const routes = routeTable().map(({ method, path, right }) => ({
    method,
    path: path.replace(/:\w+/g, "0"),
    right: right ?? "token",
  }));

  const status = async (method: string, path: string, token: string | null) => {
    const body = method === "POST" ? "{}" : null;
    const answer = await server().http.call(path, { method, body, headers: bearer(token) });
    await answer.body?.cancel();
    return answer.status;
  };

  test("rights: without a token, or with a wrong one, there is nothing but health", async () => {
    for (const { method, path, right } of routes) {
      for (const token of [null, "guess"]) {
        const got = await status(method, path, token);
        expect([method, path, got]).toEqual([method, path, right === "open" ? got : 401]);
        if (right === "open") expect(got).toBe(200);
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
});

/** Adapters' calls that pause, say which weights come by a transfer, or check them. */
const WITHOUT_PATH =
  /flush_cache|generation$|memory_occupation$|_group$|_from_(distributed|tensor)$|(begin|end)_weight_update|pull_weights|weights(_checker)?$|_meta(_lora)?$|_xccl$|finish_session|init_broadcaster|unload_/;

describe.skipIf(engineMissing() !== null)("weights", () => {
  const root = join(scratch, "root");
  const outside = join(scratch, "outside");

  beforeAll(() => {
    for (const folder of [root, outside]) {
      mkdirSync(folder);
      cpSync(BUNDLED_MODEL, join(folder, "model.gguf"));
    }
    symlinkSync(outside, join(root, "link"));
    symlinkSync(join(outside, "model.gguf"), join(root, "link.gguf"));
  });

  const server = servedTool("--weights-root", root);

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
        const { status, text } = await server().http.ask(route, body);
        expect([route, path, status]).toEqual([route, path, 400]);
        expect(text).toContain("--weights-root");
      }
    }
    expect(await server().http.json("/weight_info")).toMatchObject({ weight_version: "0" });
  });
});
