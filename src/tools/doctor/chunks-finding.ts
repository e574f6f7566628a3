// The finding of the check that a response in chunks is the one that it is in one piece, for every kind of engine.

import type { DividedCheck } from "../../engines/vllm/divided-check.ts";
import { type Finding, fail, ok, warn } from "./finding.ts";

export const CHUNKS = "chunks at temperature 0";
/** nats. Arithmetic in bfloat16 differs with the batch; two tokens nearer than this may change places. */
const TIE = 0.25;

export function chunksFinding({ at, gapNats, tokens, chunks }: DividedCheck, fix: string): Finding {
  if (at < 0) return ok(CHUNKS, `${tokens} tokens, whole and in ${chunks} chunks: the same`);
  const where = `whole and in chunks differ from token ${at} on, where the two likeliest are ${gapNats.toFixed(3)} nats apart`;
  if (gapNats < TIE) return warn(CHUNKS, `${where}: rounding, as it happens in bfloat16`, fix);
  return fail(CHUNKS, where, fix);
}
