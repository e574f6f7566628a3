// Whether a response that is divided is the one that it would be in one piece, shown on the engine at temperature 0.
// The doctor reports it; a worker asks it of models whose state is not KV of tokens (Mamba, linear attention), where a
// continuation computes its state in another way than the step by step of decoding.

const TOKENS = 192;
const CHUNK_TOKENS = 48;

export interface Greedy {
  readonly tokens: readonly number[];
  /** Logprobs of the likeliest tokens at each position, highest first. Empty: not asked for. */
  readonly top: readonly (readonly number[])[];
}

/** Generates `tokensMax` tokens greedily, and reports the two likeliest at each where `hasTop`. */
export type GenerateGreedy = (
  prompt: readonly number[],
  options: { tokensMax: number; hasTop: boolean },
) => Promise<Greedy>;

export interface DividedCheck {
  readonly tokens: number;
  readonly chunks: number;
  /** Where the two differ first; -1: nowhere. */
  readonly at: number;
  /** There, the distance of the two likeliest tokens, nats. 0: not known. */
  readonly gapNats: number;
}

export async function checkDivided(
  generate: GenerateGreedy,
  prompt: readonly number[],
): Promise<DividedCheck> {
  const whole = await generate(prompt, { tokensMax: TOKENS, hasTop: true });
  const tokens: number[] = [];
  while (tokens.length < TOKENS) {
    const tokensMax = Math.min(CHUNK_TOKENS, TOKENS - tokens.length);
    const chunk = await generate([...prompt, ...tokens], { tokensMax, hasTop: false });
    if (chunk.tokens.length === 0) break;
    tokens.push(...chunk.tokens);
  }
  const differs = whole.tokens.findIndex((token, index) => token !== tokens[index]);
  const isWhole = whole.tokens.length === TOKENS && tokens.length === TOKENS;
  const at = differs < 0 && !isWhole ? Math.min(whole.tokens.length, tokens.length) : differs;
  const [first = 0, second = 0] = whole.top[at] ?? [];
  return { tokens: TOKENS, chunks: Math.ceil(TOKENS / CHUNK_TOKENS), at, gapNats: first - second };
}
