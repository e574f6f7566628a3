// What an undisturbed run generates: the responses of `foretoken rollout` on the same prompts, seed and weights, once for
// each set of prompts and each set of weights.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { AppError } from "../base/errors.ts";
import { JOBS } from "./plan.ts";
import { ChaosProcess, type Installation } from "./process.ts";
import { writeOtherWeights } from "./weights.ts";

const GROUPS = 2;
const GROUP_SIZE = 3;
const TOKENS_MAX = 64;
const SAMPLING_SEED = 7;
const MS_MAX = 300_000;

/** What the trainer calls the two sets of weights. The first is the bundled model's, and what engines begin with. */
export const WEIGHTS = ["a", "b"] as const;
export type WeightsName = (typeof WEIGHTS)[number];

/** A line of RESPONSES.jsonl, and of /v1/rollouts. */
export interface ResponseLine {
  readonly group: string;
  readonly index: number;
  readonly prompt_token_ids: readonly number[];
  readonly token_ids: readonly number[];
  readonly logprobs: readonly number[];
  readonly finish_reason: string;
  readonly chunks: readonly {
    readonly weight_version?: string;
    readonly weights?: string;
    readonly tokens: number;
  }[];
}

export const keyOf = ({ group, index }: ResponseLine): string => `${group}/${index}`;

/** Every response of one job by `keyOf`. */
export type JobResponses = ReadonlyMap<string, ResponseLine>;

export class Reference {
  readonly #installation: Installation;
  readonly #folder: string;
  readonly #known = new Map<string, JobResponses>();
  readonly #paths: Readonly<Record<WeightsName, string>>;

  /** `folder`: for its files. */
  constructor(installation: Installation, folder: string) {
    this.#installation = installation;
    this.#folder = folder;
    this.#paths = { a: installation.model, b: join(folder, "other.gguf") };
    writeOtherWeights(installation.model, this.#paths.b);
  }

  pathOf(weights: WeightsName): string {
    return this.#paths[weights];
  }

  /** @throws AppError worker_failed: the undisturbed run failed. */
  async responses(job: number, weights: WeightsName): Promise<JobResponses> {
    const name = `${job}-${weights}`;
    const known = this.#known.get(name);
    if (known !== undefined) return known;
    const prompts = join(this.#folder, `prompts-${job}.jsonl`);
    const out = join(this.#folder, `responses-${name}.jsonl`);
    writeFileSync(prompts, promptsOf(this.#installation.prompts, job));
    const child = new ChaosProcess(this.#installation.program, [
      ...["rollout", prompts, "--out", out, "--quiet", "--model", this.#paths[weights]],
      ...["--deterministic", "--group-size", `${GROUP_SIZE}`, "--max-tokens", `${TOKENS_MAX}`],
      ...["--temperature", "1", "--seed", `${SAMPLING_SEED}`],
    ]);
    const timer = setTimeout(() => void child.kill(), MS_MAX);
    const status = await child.exited();
    clearTimeout(timer);
    if (status !== 0) {
      const said = child.lines.join("\n");
      throw new AppError("worker_failed", `the undisturbed run ended with ${status}: ${said}`);
    }
    const lines = readFileSync(out, "utf8").trim().split("\n");
    const parsed = lines.map((line) => JSON.parse(line) as ResponseLine);
    const responses = new Map(parsed.map((line) => [keyOf(line), line]));
    this.#known.set(name, responses);
    return responses;
  }
}

/** The body of POST /v1/rollouts that asks for the responses of a job. */
export function bodyOf(id: string, responses: JobResponses): string {
  const prompts = new Map<string, readonly number[]>();
  for (const line of responses.values()) prompts.set(line.group, line.prompt_token_ids);
  return JSON.stringify({
    id,
    detached: true,
    n: GROUP_SIZE,
    sampling: { seed: SAMPLING_SEED, temperature: 1, max_tokens: TOKENS_MAX },
    groups: [...prompts].map(([group, token_ids]) => ({ id: group, token_ids })),
  });
}

/** Lines of the bundled prompts, other ones for each job. */
function promptsOf(path: string, job: number): string {
  const lines = readFileSync(path, "utf8").trim().split("\n");
  const first = GROUPS * (job % JOBS);
  return `${lines.slice(first, first + GROUPS).join("\n")}\n`;
}
