// `foretoken status`: what a running server waits for, one line each. Ends with 1 if something is stuck.

import { array, number, object, parse, picklist, string } from "valibot";
import { AppError } from "../core/base/errors.ts";
import { getOnce, jsonIn, problemIn } from "../engines/vllm/http.ts";
import { commandOf } from "./command.ts";
import { EXIT_FAILED } from "./output.ts";

const URL_DEFAULT = "http://127.0.0.1:8000";
const ANSWER_MS_MAX = 10_000;

const EXAMPLES = `
Each line begins with a state. ok: as it should be. slow: a response far longer
than its siblings, an engine with longer steps than the others, a call that has
taken half of its time. stuck: an engine makes no token for much longer than its
measured steps take, or does not serve. A long prefill or a compilation is ok.

Examples:
  $ foretoken status
  $ foretoken status http://rollouts:8000 --json`;

const ANSWER = object({
  unfinished: number(),
  waiting: array(object({ state: picklist(["ok", "slow", "stuck"]), reason: string() })),
});

export const statusCommand = commandOf({
  name: "status",
  description: "Say what a server waits for: which response, which engine, which call, how long.",
  takes: ["[URL]", `the server (default: "${URL_DEFAULT}")`],
  help: EXAMPLES,
  fields: ["apiToken", "json"],
  run: ({ apiToken, json }, [url = URL_DEFAULT]) => status(url, apiToken, json),
});

async function status(url: string, apiToken: string | null, json: boolean): Promise<number> {
  const body = await answerOf(url, apiToken);
  const { unfinished, waiting } = parse(ANSWER, body);
  if (json) console.log(JSON.stringify(body, null, 2));
  else if (waiting.length === 0)
    console.log(`${url} waits for nothing; ${unfinished} responses are open`);
  else for (const { state, reason } of waiting) console.log(`${state.padEnd(5)}  ${reason}`);
  return waiting.some(({ state }) => state === "stuck") ? EXIT_FAILED : 0;
}

/** The server's answer to GET /v1/waiting. @throws AppError worker_failed: no answer; invalid_config: not a server's URL. */
async function answerOf(url: string, token: string | null): Promise<unknown> {
  const answer = await getOnce({ url, token }, "/v1/waiting", ANSWER_MS_MAX);
  const json = jsonIn(answer);
  if (json !== null) return json;
  throw new AppError("worker_failed", `${url}/v1/waiting: ${problemIn(answer)}`);
}
