// Single vLLM servers without a sidecar, for comparing them: plain, with the plugin, and with a proposer that never drafts.

import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { findVllm } from "../../../src/tools/up/find-vllm.ts";
import { ensurePlugin } from "../../../src/tools/up/install-plugin.ts";
import { DRAFT_TOKENS, launchOf } from "../../../src/tools/up/launch.ts";
import { ManagedServer } from "../../../src/tools/up/managed-server.ts";
import { freePorts } from "../../../src/tools/up/ports.ts";
import { ROOT } from "../../../test/vllm/fleet.ts";
import type { Single } from "./batches.ts";

const HOST = "127.0.0.1";
const START_MS_MAX = 600_000;
const GRACE_MS = 10_000;
const NULL_PROPOSER = `class NullProposer:
    def __init__(self, vllm_config):
        pass

    def load_model(self, *arguments, **options):
        pass

    def dummy_run(self, *arguments, **options):
        pass

    def propose(self, sampled_token_ids, *arguments, **options):
        return [[] for _ in sampled_token_ids]
`;
/** Settings that measure the overhead of vLLM's speculation alone: a proposer without drafts. */
const NULL_SPECULATION = {
  method: "custom_class",
  model: "null_proposer.NullProposer",
  num_speculative_tokens: DRAFT_TOKENS,
};

export type SingleName = "plain" | "plugin" | "null";

export interface Singles {
  readonly singles: readonly Single[];
  stop(): Promise<void>;
}

/** Starts one server of each, with vllm_bench.py in it; resolves when all are healthy. */
export async function startSingles(
  names: readonly SingleName[],
  options: { model: string; slots: number },
): Promise<Singles> {
  const found = findVllm(process.env.FORETOKEN_VLLM ?? null, ROOT);
  await ensurePlugin({ python: found.python, root: ROOT });
  const folder = mkdtempSync(join(tmpdir(), "foretoken-bench-"));
  writeFileSync(join(folder, "null_proposer.py"), NULL_PROPOSER);
  const ports = freePorts(names.length + 1, HOST);
  const servers = names.map((name, i) => {
    const port = ports[i] ?? 0;
    const {
      command,
      env: own,
      envDefaults,
    } = launchOf({
      ...{ command: found.command, build: found.build, model: options.model, host: HOST, port },
      ...{ contextTokens: null, servedName: null, apiKey: null },
      gpus: found.build.isCpu ? null : "0",
      // Nothing listens there: the sidecar is off.
      plugin:
        name === "plugin"
          ? {
              draftUrl: `ws://${HOST}:${ports[names.length]}/v1/draft`,
              token: null,
              statsFile: join(folder, "stats.json"),
              runner: 1,
            }
          : null,
      extraArgs: [
        ...["--max-num-seqs", String(options.slots), "--worker-extension-cls", "vllm_bench.Bench"],
        ...(name === "null" ? ["--speculative-config", JSON.stringify(NULL_SPECULATION)] : []),
      ],
    });
    const paths = [import.meta.dir, folder, process.env.PYTHONPATH ?? ""].filter((path) => path);
    const env = { ...envDefaults, ...process.env, ...own, PYTHONPATH: paths.join(":") };
    const logPath = join(folder, `${name}.log`);
    const spec = { name, url: `http://${HOST}:${port}`, command, env, logPath };
    return new ManagedServer({ ...spec, startMsMax: START_MS_MAX, graceMs: GRACE_MS }, () => {});
  });
  const stop = async (): Promise<void> => {
    await Promise.all(servers.map((server) => server.stop()));
    rmSync(folder, { recursive: true, force: true });
  };
  try {
    await Promise.all(servers.map((server) => server.start()));
  } catch (error) {
    await stop();
    throw error;
  }
  const singles = servers.map(({ spec: { name, url }, pid }) => ({ name, url, pid: pid ?? 0 }));
  return { singles, stop };
}
