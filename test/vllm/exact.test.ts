// The plugin's `exact` on vLLM's first model runner: on vLLM's own samplers without a server, and by
// `foretoken verify --vllm` on two servers that draft.

import { describe, expect, setDefaultTimeout, test } from "bun:test";
import type { WayReport } from "../../src/tools/verify/compare-servers.ts";
import { foretoken } from "../e2e/tool.ts";
import { TEST_MS_MAX } from "./bed.ts";
import { Fleet, scripted, vllmMissing } from "./fleet.ts";

setDefaultTimeout(TEST_MS_MAX);

const missing = vllmMissing();
if (missing !== null) console.log(`exact: skipped, ${missing}`);

describe.skipIf(missing !== null)("exact on vLLM's first model runner", () => {
  test("vLLM's samplers draw the same tokens drafted or not, from the model's distribution; no fault gets out", () => {
    const said = scripted(["keyed_cases.py"]).split("\n").at(-1) ?? "";
    expect(JSON.parse(said)).toMatchObject({ tokens: 200, accepted: expect.any(Number) });
  });

  test("two servers: in chunks, moved and drafted, responses at temperature 1 are token for token the plain ones", async () => {
    const fleet = await Fleet.up([
      ...["--plugin", "--max-model-len", "1600", "--"],
      ...["--additional-config", JSON.stringify({ foretoken: { exact: 1 } })],
    ]);
    try {
      const urls = fleet.servers.map(({ url }) => url).join(",");
      const size = ["--limit", "6", "--group-size", "4", "--max-tokens", "128", "--slots", "4"];
      const ran = await foretoken("verify", "--vllm", urls, ...size, "--json", "--quiet");
      const { ways } = JSON.parse(ran.stdout) as { ways: WayReport[] };
      expect(ways.map(({ way }) => way).join()).toBe("plain,again,chunks,moves,drafts,all");
      const [, ...others] = ways;
      for (const { way, differences, dlogp } of others) {
        expect({ way, differences }).toEqual({ way, differences: [] });
        expect(dlogp.max).toBeLessThan(1e-3);
      }
      for (const { accepted_tokens: accepted } of ways.slice(-2)) {
        expect(accepted).toBeGreaterThan(100);
      }
      expect(ran.status).toBe(0);
      const told = ways.map((one) => `${one.way} ${one.accepted_tokens} accepted`).join(", ");
      console.log(`exact: ${ways[0]?.compared_tokens} tokens in each way: ${told}`);
    } finally {
      await fleet.stop();
    }
  });
});
