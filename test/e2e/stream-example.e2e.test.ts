// The program of STREAM.md, as a reader would copy it: it follows a group that it subscribed to before the request.

import { expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { servedTool } from "../faults/served-tool.ts";
import { engineMissing, ROOT } from "./tool.ts";

setDefaultTimeout(180_000);

const open = servedTool();

test.skipIf(engineMissing() !== null)(
  "STREAM.md: its example prints every token of its two responses, and both ends",
  async () => {
    const text = await Bun.file(join(ROOT, "docs", "STREAM.md")).text();
    const [, example = ""] = /```js\n(.*?)```/s.exec(text) ?? [];
    // A group of the same name has ended before.
    const headers = { "x-foretoken-group": "mine" };
    await open().http.post("/v1/completions", { prompt: "1 +", n: 3, max_tokens: 4 }, headers);
    const program = example.replaceAll("127.0.0.1:8000", open().http.url.host);
    const child = Bun.spawn([process.execPath, "-e", program], { stdout: "pipe" });
    const lines = (await new Response(child.stdout).text()).trim().split("\n");
    const ends = lines.filter((line) => /^\d+ (stop|length)$/.test(line));
    expect(ends.map((line) => line.split(" ")[0]).toSorted()).toEqual(["3", "4"]);
    const firsts = lines.filter((line) => /^\d+ 0 \[/.test(line));
    expect(firsts.map((line) => line.split(" ")[0]).toSorted()).toEqual(["3", "4"]);
  },
);
