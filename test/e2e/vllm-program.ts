// Runs as the `vllm` command: a stand-in for a vLLM server at the port of `vllm serve MODEL --port N`, whose model's logprobs
// of a finished text are those that came with its tokens.

import { standInLogprob } from "../faults/stand-in/tokens.ts";
import { VllmStandIn } from "../faults/stand-in/vllm-stand-in.ts";

const at = process.argv.indexOf("--port");
await VllmStandIn.start({
  port: Number(process.argv[at + 1]),
  // The bundled model's.
  vocabularySize: 1376,
  promptLogprobs: (prompt) =>
    prompt.map((token, i) => (i === 0 ? null : { [token]: { logprob: standInLogprob(token) } })),
});
