// Later turns of a session as chats. Encoded as a whole, a chat may get other tokens for what the model generated. So its
// prompt is the recorded tokens of the longest earlier text that it begins with, followed by the tokens of the rest.

import { sharedTokens } from "../sessions.ts";

/** The ends of turns of one sequence, the shortest text first; functions, because a text may be long. */
export type EndsOfTurns = readonly (() => Int32Array)[];

export interface ChatText {
  readonly prompt: Int32Array;
  readonly text: () => Promise<string>;
  readonly decode: (tokens: Int32Array) => Promise<string>;
  readonly encode: (text: string) => Promise<Int32Array>;
}

/** The prompt with its recorded tokens. `sequences`: the newest first. null: it has them already, or none of the texts. */
export async function continued(
  chat: ChatText,
  sequences: readonly EndsOfTurns[],
): Promise<Int32Array | null> {
  const last = sequences[0]?.at(-1)?.() ?? null;
  if (last === null || beginsWith(chat.prompt, last)) return null;
  const text = await chat.text();
  /** Number of the chat's characters that the tokens make; -1: the chat does not begin with them. */
  const charactersOf = async (tokens: Int32Array): Promise<number> => {
    const said = await chat.decode(tokens);
    return text.startsWith(said) ? said.length : -1;
  };
  // Most agents go on from the last turn.
  let best = { tokens: last, characters: await charactersOf(last) };
  for (const [i, ends] of sequences.entries()) {
    if (i === 0 && best.characters >= 0) continue;
    // The chat begins with a text of a sequence if it does with a longer one.
    let from = 0;
    let to = ends.length;
    while (from < to) {
      const middle = (from + to) >> 1;
      const tokens = ends[middle]?.() ?? last;
      const characters = await charactersOf(tokens);
      if (characters < 0) to = middle;
      else from = middle + 1;
      if (characters > best.characters) best = { tokens, characters };
    }
  }
  const { tokens, characters } = best;
  if (characters < 0 || beginsWith(chat.prompt, tokens)) return null;
  const rest = await chat.encode(text.slice(characters));
  const whole = new Int32Array(tokens.length + rest.length);
  whole.set(tokens);
  whole.set(rest, tokens.length);
  return whole;
}

function beginsWith(prompt: Int32Array, tokens: Int32Array): boolean {
  return sharedTokens(prompt, tokens, 0) === tokens.length;
}
