// What drafts gain on this machine's GPU: runs the bench of the plugin's wheel with the Python of vLLM's environment, after
// the checkout's plugin was installed there. Every argument is the bench's (`-- --help` shows them).
//
//   npm run bench:gpu -- [--systems plain plugin] [--batches 1 8 32] [--out results.json] [--cpu]

import { findVllm } from "../src/tools/up/find-vllm.ts";
import { ensurePlugin } from "../src/tools/up/install-plugin.ts";
import { ROOT } from "../test/vllm/fleet.ts";

const args = process.argv.slice(2);
const model = ["--model", `${ROOT}/model/hf`, "--prompts", `${ROOT}/model/prompts.jsonl`];
const { python } = findVllm(process.env.FORETOKEN_VLLM ?? null, ROOT);
await ensurePlugin({ python, root: ROOT });
const bench = Bun.spawn([python, "-m", "foretoken_vllm.gpu_bench", ...model, ...args], {
  stdin: "ignore",
  stdout: "inherit",
  stderr: "inherit",
});
// It ends its servers first; a terminal's Ctrl-C reaches it without this process.
process.on("SIGINT", () => {});
process.on("SIGTERM", () => bench.kill("SIGTERM"));
process.exit(await bench.exited);
