// Tokens that say where they are from: the epoch of the weights and the position in the response. So an answer shows
// whether a token was lost, repeated, or is of another epoch than the answer names.

const FIRST = 10;
const EPOCHS = 30;
const POSITIONS = 33;

export function tellingToken(position: number, epoch: number): number {
  return FIRST + (epoch % EPOCHS) * POSITIONS + (position % POSITIONS);
}

interface Wanted {
  readonly tokens: number;
  /** Something ended requests early: a response may have fewer tokens. */
  readonly mayEnd: boolean;
}

interface Span {
  readonly version: string;
  readonly start: number;
  readonly end: number;
}

/** An answer of /inference/v1/generate. */
export function checkGenerated(answer: unknown, { tokens, n, mayEnd }: Wanted & { n: number }) {
  const { choices } = answer as {
    choices: { token_ids: number[]; finish_reason: string; weight_versions: Span[] }[];
  };
  if (choices.length !== n) throw new Error(`${choices.length} responses, not ${n}`);
  for (const { token_ids: ids, finish_reason: finish, weight_versions: spans } of choices) {
    checkEnd({ count: ids.length, finish }, { tokens, mayEnd });
    const epochOf = (at: number) =>
      spans.find(({ start, end }) => start <= at && at < end)?.version;
    checkTokens(ids, (at) => Number(epochOf(at)));
  }
}

interface Line {
  readonly group?: string;
  readonly index: number;
  readonly token_ids: number[];
  readonly finish_reason: string;
  readonly chunks: { offset: number; tokens: number; weight_epoch: number }[];
}

/** The lines of /v1/rollouts. */
export function checkRollout(
  text: string,
  { responses, isStrict, ...wanted }: Wanted & { responses: number; isStrict: boolean },
): void {
  const lines = text
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as Line);
  const made = lines.filter(({ group }) => group !== undefined);
  if (made.length !== responses && !wanted.mayEnd) {
    throw new Error(`${made.length} responses, not ${responses}: ${text}`);
  }
  const names = new Set(made.map(({ group, index }) => `${group} ${index}`));
  if (names.size < made.length) throw new Error(`a response came twice: ${text}`);
  for (const { token_ids: ids, finish_reason: finish, chunks } of made) {
    checkEnd({ count: ids.length, finish }, wanted);
    const epochOf = (at: number) =>
      chunks.find(({ offset, tokens }) => offset <= at && at < offset + tokens)?.weight_epoch;
    checkTokens(ids, (at) => epochOf(at) ?? Number.NaN);
    const epochs = new Set(
      chunks.filter(({ tokens }) => tokens > 0).map((one) => one.weight_epoch),
    );
    if (isStrict && epochs.size > 1) throw new Error(`a strict response of ${[...epochs]}`);
  }
}

function checkEnd(made: { count: number; finish: string }, { tokens, mayEnd }: Wanted): void {
  if (made.count === tokens && made.finish === "length") return;
  if (mayEnd && made.count <= tokens) return;
  throw new Error(`${made.count} of ${tokens} tokens, ended by ${made.finish}`);
}

function checkTokens(ids: readonly number[], epochOf: (at: number) => number): void {
  for (const [at, id] of ids.entries()) {
    const wanted = tellingToken(at, epochOf(at));
    if (id !== wanted) throw new Error(`token ${at} of ${ids} is ${id}, not ${wanted}`);
  }
}
