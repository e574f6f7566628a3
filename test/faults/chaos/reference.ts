// What an undisturbed run generates: the responses of `foretoken rollout` on the same prompts, seed and weights, once for
// each set of prompts and each set of weights. Responses under faults must be the same, to the last bit.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { present } from "../../../src/core/base/assert.ts";
import { AppError } from "../../../src/core/base/errors.ts";
import { ToolProcess } from "../process.ts";
import { differenceFrom, judge } from "./client.ts";
import { type Asked, type Call, type Installation, type Oracle, promptLines } from "./oracle.ts";
import type { ChaosPlan } from "./plan.ts";
import { keyOf, linesIn, type ResponseLine, WEIGHTS, type WeightsName } from "./response-line.ts";
import { writeOtherGguf } from "./weights.ts";

const GROUP_SIZE = 3;
const TOKENS_MAX = 64;
const SAMPLING_SEED = 7;
const MS_MAX = 300_000;

/** Every response of one job by `keyOf`. */
export type JobResponses = ReadonlyMap<string, ResponseLine>;

export class Reference implements Oracle {
  readonly #installation: Installation;
  readonly #folder: string;
  readonly #known = new Map<string, JobResponses>();
  readonly #paths: Readonly<Record<WeightsName, string>>;

  /** `folder`: for its files. */
  constructor(installation: Installation, folder: string) {
    this.#installation = installation;
    this.#folder = folder;
    this.#paths = { a: installation.model, b: join(folder, "other.gguf") };
    writeOtherGguf(installation.model, this.#paths.b);
  }

  updateTo(weights: WeightsName): Call {
    const update_info = { weights_path: this.#paths[weights] };
    return { path: "/update_weights", body: { update_info, weight_version: weights } };
  }

  async ask({ job, faults }: ChaosPlan, current: WeightsName): Promise<Asked> {
    const wanted = new Map<WeightsName, JobResponses>();
    const isUpdated = faults.some(({ kind }) => kind === "weights");
    for (const name of isUpdated ? WEIGHTS : [current]) {
      wanted.set(name, await this.responses(job, name));
    }
    const first = present(wanted.get(current), "the current weights are among them");
    let tokens = 0;
    for (const line of first.values()) tokens += line.token_ids.length;
    return {
      tokens,
      body: (id) => bodyOf(id, first),
      judge: (collected) => Promise.resolve(judge(collected, first.keys(), differenceFrom(wanted))),
    };
  }

  /** @throws AppError worker_failed: the undisturbed run failed. */
  async responses(job: number, weights: WeightsName): Promise<JobResponses> {
    const name = `${job}-${weights}`;
    const known = this.#known.get(name);
    if (known !== undefined) return known;
    const prompts = join(this.#folder, `prompts-${job}.jsonl`);
    const out = join(this.#folder, `responses-${name}.jsonl`);
    writeFileSync(prompts, `${promptLines(this.#installation.prompts, job).join("\n")}\n`);
    const child = new ToolProcess([
      ...["rollout", prompts, "--out", out, "--quiet", "--model", this.#paths[weights]],
      ...["--deterministic", "--group-size", `${GROUP_SIZE}`, "--max-tokens", `${TOKENS_MAX}`],
      ...["--temperature", "1", "--seed", `${SAMPLING_SEED}`],
    ]);
    const timer = setTimeout(() => void child.kill(), MS_MAX);
    const status = await child.exited;
    clearTimeout(timer);
    if (status !== 0) {
      const said = child.lines.join("\n");
      throw new AppError("worker_failed", `the undisturbed run ended with ${status}: ${said}`);
    }
    const lines = linesIn(readFileSync(out, "utf8"));
    const responses = new Map(lines.map((line) => [keyOf(line), line]));
    this.#known.set(name, responses);
    return responses;
  }
}

function bodyOf(id: string, responses: JobResponses): string {
  const prompts = new Map<string, readonly number[]>();
  for (const line of responses.values()) prompts.set(line.group, line.prompt_token_ids);
  return JSON.stringify({
    id,
    detached: true,
    n: GROUP_SIZE,
    sampling_params: { seed: SAMPLING_SEED, temperature: 1, max_tokens: TOKENS_MAX },
    groups: [...prompts].map(([group, token_ids]) => ({ id: group, token_ids })),
  });
}
