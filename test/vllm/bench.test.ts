// `bench:vllm` at its smallest, on real servers: its report, and that all systems did the same work with one `max_tokens`.

import { expect, setDefaultTimeout, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../suite/temporary-folder.ts";
import { TEST_MS_MAX } from "./bed.ts";
import { ROOT, vllmMissing } from "./fleet.ts";

setDefaultTimeout(TEST_MS_MAX);

const missing = vllmMissing();
if (missing !== null) console.log(`bench: skipped, ${missing}`);

const folder = temporaryFolder("bench");

test.skipIf(missing !== null)(
  "bench:vllm: reports every system with the lengths that plain vLLM made",
  async () => {
    const report = join(folder, "report.json");
    const sizes = ["--rounds", "1", "--groups", "2", "--siblings", "3", "--max-tokens", "96"];
    const systems = ["--systems", "plain,least_loaded,foretoken_http", "--chunk-tokens", "32"];
    const bench = Bun.spawn(
      [
        ...[process.execPath, join(ROOT, "bench", "macro", "vllm.ts")],
        ...[...sizes, ...systems, "--account", "--report", report],
      ],
      { cwd: ROOT, stdout: "pipe", stderr: "pipe" },
    );
    const [told, log] = await Promise.all([
      new Response(bench.stdout).text(),
      new Response(bench.stderr).text(),
    ]);
    // It ends with an error if a response is longer or shorter than planned.
    expect({ status: await bench.exited, log }).toMatchObject({ status: 0 });
    const { systems: found } = JSON.parse(readFileSync(report, "utf8"));
    expect(Object.keys(found)).toEqual(["plain", "least_loaded", "foretoken_http"]);
    const { plain, least_loaded: least, foretoken_http: http } = found;
    for (const { rounds, wall_s, output_tokens } of [plain, least, http]) {
      expect(rounds).toMatchObject([{ wall_s }]);
      expect(output_tokens).toBe(plain.output_tokens);
    }
    expect(plain.computed_again_tokens).toBe(0);
    expect(http.prompt_tokens).toBeGreaterThan(plain.prompt_tokens);
    expect(told).toContain("= speed");
    expect(readFileSync(report.replace("json", "svg"), "utf8")).toContain("Foretoken over plain");
  },
);
