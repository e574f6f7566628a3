// The program of STREAM.md follows a group that it subscribed to before the request.

import { expect, setDefaultTimeout } from "bun:test";
import { until } from "../faults/http-client.ts";
import { servedTool } from "../faults/served-tool.ts";
import { engineTest } from "../suite/engine-test.ts";
import { expectFollowed, streamExample } from "../suite/stream-example.ts";
import { ROOT } from "./tool.ts";

setDefaultTimeout(180_000);

const open = servedTool();

engineTest(
  "STREAM.md: its example prints every token of its two responses, and both ends",
  async () => {
    // A group of the same name has ended before.
    const headers = { "x-foretoken-group": "mine" };
    await open().http.post("/v1/completions", { prompt: "1 +", n: 3, max_tokens: 4 }, headers);
    const program = await streamExample(open().http.url.host);
    const command = [process.execPath, "-e", program];
    const child = Bun.spawn(command, { cwd: ROOT, stdout: "pipe", stderr: "pipe" });
    expectFollowed(await new Response(child.stdout).text(), ["3", "4"]);
    expect(await child.exited).toBe(0);
    const clients = () => open().http.metric("foretoken_stream_clients");
    await until(async () => (await clients()) === 0, "it has gone");
  },
);
