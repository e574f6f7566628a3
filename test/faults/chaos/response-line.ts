// A response as /v1/rollouts and RESPONSES.jsonl have it, and of which weights it is.

/** The trainer's names for the two sets of weights. The first is the bundled model's, which engines start with. */
export const WEIGHTS = ["a", "b"] as const;
export type WeightsName = (typeof WEIGHTS)[number];
/** The sidecar's name for the weights that engines start with. */
const UNNAMED = "0";

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
    readonly weight_epoch?: number;
    readonly worker?: number | string;
    readonly tokens: number;
  }[];
}

/** Lines of a file or an answer. */
export const linesIn = (text: string): ResponseLine[] =>
  Array.from(text.trim().split("\n"), (line) => JSON.parse(line));

/** Lines and report of a rollout, however long it takes. */
export async function rolledOut(url: URL, body: string) {
  const init = { method: "POST", body, timeout: false } as RequestInit;
  const answer = await (await fetch(new URL("/v1/rollouts", url), init)).text();
  const lines = Array.from(answer.trim().split("\n"), (line) => JSON.parse(line));
  return { report: lines.pop().report, lines: lines as ResponseLine[] };
}

export const keyOf = ({ group, index }: ResponseLine): string => `${group}/${index}`;

/** The weights of all chunks of a response; null: they differ, or have a name that nobody gave. */
export function weightsOf({ chunks }: ResponseLine): WeightsName | null {
  const versions = new Set(chunks.map(({ weight_version: version }) => version));
  const [version] = versions;
  if (versions.size !== 1) return null;
  return version === UNNAMED ? WEIGHTS[0] : (WEIGHTS.find((name) => name === version) ?? null);
}

export function mixedWeights({ chunks }: ResponseLine): string {
  return `its chunks are of the weights ${chunks.map((chunk) => `${chunk.weight_version} (${chunk.tokens} tokens)`).join(", ")}`;
}
