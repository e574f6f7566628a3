// A holder of the API token registers an address of their own, to be sent what the sidecar sends its engines: the API key of
// the vLLM servers.

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { present } from "../../../src/core/base/assert.ts";
import { BUNDLED_HF_MODEL } from "../../../src/host/installation.ts";
import { until } from "../http-client.ts";
import { ToolProcess } from "../process.ts";
import { VllmStandIn } from "../stand-in/vllm-stand-in.ts";

setDefaultTimeout(180_000);

const SECRET = "of-the-operator";
const ASKED = { authorization: "Bearer of-the-client" };

describe("thieves", () => {
  /** All that the sidecar sends to an address of the attacker. */
  const got: string[] = [];
  const thief = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    fetch: (request) => {
      got.push(`${request.url} ${JSON.stringify(request.headers)}`);
      return new Response(null, { status: 404 });
    },
  });
  let worker: VllmStandIn | null = null;
  let server: ToolProcess | null = null;

  beforeAll(async () => {
    worker = await VllmStandIn.start({ apiKey: SECRET });
    const tokens = ["--worker-token", SECRET, "--api-token", "of-the-client"];
    const model = ["--tokenizer", BUNDLED_HF_MODEL];
    server = await ToolProcess.serving("--worker", worker.url, ...model, ...tokens);
  });
  afterAll(async () => {
    await Promise.all([server?.kill(), worker?.stop(), thief.stop(true)]);
  });

  const call = async (method: string, path: string, body: object | null = null) => {
    const init = { method, headers: ASKED, body: body === null ? null : JSON.stringify(body) };
    const answer = await present(server, "it serves").http.call(path, init);
    return { status: answer.status, text: await answer.text() };
  };

  test("thieves: an address that a client names is sent the token that the client names, and no other", async () => {
    for (const scheme of ["http", "sglang"]) {
      got.length = 0;
      const url = `${scheme}://127.0.0.1:${thief.port}`;
      expect(await call("POST", "/workers", { url })).toMatchObject({ status: 202 });
      await until(
        () => got.length > 0,
        () => got.join("\n"),
      );
      expect((await call("DELETE", `/workers?url=${encodeURIComponent(url)}`)).status).toBe(202);
      expect(got.join("\n")).not.toContain(SECRET);
      await until(async () => !(await call("GET", "/workers")).text.includes(url), "it has left");
      const named = `url=${encodeURIComponent(url)}&api_key=of-the-thief`;
      expect((await call("POST", `/add_worker?${named}`)).status).toBe(202);
      await until(
        () => got.join("\n").includes("of-the-thief"),
        () => got.join("\n"),
      );
      expect((await call("DELETE", `/workers?url=${encodeURIComponent(url)}`)).status).toBe(202);
    }
    const text = present(server, "it serves").text;
    expect(text).not.toContain("of-the-thief");
    expect(got.join("\n")).not.toContain(SECRET);
  });

  test("thieves: the engine that the operator named leaves and comes back with its token", async () => {
    const { url } = present(worker, "it listens");
    expect((await call("DELETE", `/workers?url=${encodeURIComponent(url)}`)).status).toBe(202);
    await until(async () => !(await call("GET", "/workers")).text.includes(url), "it has left");
    expect((await call("POST", "/workers", { url: `${url}/` })).status).toBe(202);
    await until(async () => (await call("GET", "/health")).status === 200, "it serves again");
  });

  test("thieves: what no header can hold is refused as a token", async () => {
    for (const key of ["", "a b", "a\r\nx: y", "é", 5, "x".repeat(4097)]) {
      const { status, text } = await call("POST", "/workers", {
        url: "http://127.0.0.1:1",
        api_key: key,
      });
      expect([key, status, text]).toEqual([key, 400, expect.stringContaining("api_key")]);
    }
  });
});
