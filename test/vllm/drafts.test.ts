// A server that drafts by vLLM's own means, on CPU: vLLM 0.32 draws wrongly with every method there. The doctor finds it
// out, `serve` refuses it, and `up` starts it again without drafts.

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { findVllm } from "../../src/tools/up/find-vllm.ts";
import { launchOf } from "../../src/tools/up/launch.ts";
import { ManagedServer } from "../../src/tools/up/managed-server.ts";
import { freePorts } from "../../src/tools/up/ports.ts";
import { foretoken } from "../e2e/tool.ts";
import { TEST_MS_MAX } from "./bed.ts";
import { examined, Fleet, MODEL, named, ROOT, vllmMissing } from "./fleet.ts";

setDefaultTimeout(TEST_MS_MAX);

const HOST = "127.0.0.1";
const DRAFTS = [
  "--speculative-config",
  JSON.stringify({ method: "ngram", num_speculative_tokens: 4, prompt_lookup_max: 4 }),
];

function reasonToSkip(): string | null {
  const missing = vllmMissing();
  if (missing !== null) return missing;
  const { build } = findVllm(process.env.FORETOKEN_VLLM ?? null, ROOT);
  const isFaulty = build.isCpu && build.version.startsWith("0.32.");
  return isFaulty ? null : `vLLM ${build.version} is not known to draw wrongly with drafts`;
}

const skipped = reasonToSkip();
if (skipped !== null) console.log(`drafts: skipped, ${skipped}`);

describe.skipIf(skipped !== null)("a vLLM server whose drafts change what it draws", () => {
  let server: ManagedServer | null = null;
  /** Starts beside the other one, and examines its server while that one is examined. */
  let starting: Promise<Fleet> | null = null;

  beforeAll(async () => {
    const found = findVllm(process.env.FORETOKEN_VLLM ?? null, ROOT);
    const [port = 0] = freePorts(1, HOST);
    const launch = launchOf({
      ...found,
      model: MODEL,
      host: HOST,
      port,
      gpus: found.build.isCpu ? null : "0",
      contextTokens: 2100,
      servedName: null,
      apiKey: null,
      plugin: null,
      pool: null,
      extraArgs: DRAFTS,
    });
    server = new ManagedServer(
      {
        name: "drafting",
        url: `http://${HOST}:${port}`,
        command: launch.command,
        env: { ...launch.envDefaults, ...process.env, ...launch.env },
        logPath: join(ROOT, "out", "test-vllm", "drafting.log"),
        startMsMax: TEST_MS_MAX,
        graceMs: 5000,
      },
      () => {},
    );
    starting = Fleet.up(["--workers", "1", "--max-model-len", "2100", "--", ...DRAFTS]);
    // The last test reports a failure.
    starting.catch(() => undefined);
    await server.start();
  });

  afterAll(async () => {
    await server?.stop();
    await (await starting?.catch(() => null))?.stop();
  });

  test("doctor: what it draws, and the logprobs that it reports, are found to be wrong, and nothing else", async () => {
    const { status, findings } = await examined(server?.spec.url ?? "");
    expect(named(findings, "fail")).toEqual(["sampling with drafts", "reported logprobs"]);
    expect(status).toBe(1);
    const [faulty] = findings.filter(({ verdict }) => verdict === "fail");
    expect(faulty?.reason).toContain("error rate 0.000001");
    expect(faulty?.fix).toContain("no --speculative-config");
    console.log(`doctor: ${faulty?.reason}`);
  });

  test("serve: refuses it by name, with the reason", async () => {
    const url = server?.spec.url ?? "";
    const ran = await foretoken("serve", "--port", "0", "--worker", url);
    expect(ran.status).toBe(1);
    expect(ran.stderr).toContain(`${url}: mean logprob`);
    expect(ran.stderr).toContain("start it without --speculative-config");
    await server?.stop();
  });

  test("up: ends, and names the reason", async () => {
    await expect(starting).rejects.toThrow("start it without --speculative-config");
  });
});
