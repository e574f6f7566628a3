// A stand-in for a vLLM server as a process of its own, which tests kill and stop. It runs as the `vllm` command too (`vllm serve
// MODEL --port N`): its model's logprobs of a finished text are those that came with its tokens.

import { untilSignal } from "../../../src/cli/signals.ts";
import { standInLogprob } from "./tokens.ts";
import { type StandInOptions, VllmStandIn } from "./vllm-stand-in.ts";

const after = (flag: string): string | undefined => {
  const at = process.argv.indexOf(flag);
  return at < 0 ? undefined : process.argv[at + 1];
};
const options = JSON.parse(after("--stand-in") ?? "{}") as Partial<StandInOptions>;
const server = await VllmStandIn.start({
  port: Number(after("--port") ?? 0),
  // The bundled model's.
  vocabularySize: 1376,
  promptLogprobs: (prompt) =>
    prompt.map((token, i) => (i === 0 ? null : { [token]: { logprob: standInLogprob(token) } })),
  startedS: Date.now() / 1000,
  ...options,
});
console.log(`stand-in on ${server.url}`);
await untilSignal().first;
process.exit(0);
