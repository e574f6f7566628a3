// Cuts the drafts of one step to a budget for the whole batch: best first over all requests by weight times
// probability. The lists are best first themselves and parents precede children, so a prefix of each is
// kept and the set kept is the one with the highest expected gain.

import { FEATURE_BYTES } from "./draft/mixer";
import { heapDrop, heapPop, heapPush, heapTake } from "./heap/heap";

let heap: usize = 0;

function word(array: usize, index: i32): usize {
  return array + ((<usize>index) << 2);
}

function offer(draft: i32, at: i32, end: i32, probabilities: usize, weight: f32): bool {
  if (at >= end) return true;
  // The lowest key comes first, and NaN would break the order.
  const gain = <f64>weight * <f64>load<f32>(word(probabilities, at));
  if (!(gain > 0)) return true;
  return heapPush(heap, <u32>draft, -gain) == 0;
}

// Shortens the `drafts` drafts whose arrays begin at `tokens`, `room` bytes apart, and at `reasons`, to
// `budget` tokens in all; `weights` is the address of the first draft's weight, `stride` bytes before the next one's.
// Returns the tokens kept. Without room for its heap it keeps nothing.
export function budgetCut(
  starts: usize,
  drafts: i32,
  tokens: usize,
  room: usize,
  features: usize,
  weights: usize,
  stride: usize,
  budget: i32,
): i32 {
  if (load<i32>(word(starts, drafts)) <= budget) return load<i32>(word(starts, drafts));
  heap = heapTake();
  let left = heap == 0 ? 0 : budget;
  const probabilities = tokens + 2 * room;
  // While drafts are chosen, `parents` of a draft's first token holds how many of its tokens are kept:
  // that parent is -1 always.
  for (let i: i32 = 0; i < drafts && left > 0; i++) {
    const from = load<i32>(word(starts, i));
    const end = load<i32>(word(starts, i + 1));
    if (from < end) store<i32>(word(tokens + room, from), 0);
    if (!offer(i, from, end, probabilities, load<f32>(weights + <usize>i * stride))) left = 0;
  }
  while (left > 0) {
    const i = heapPop(heap);
    if (i < 0) break;
    const from = load<i32>(word(starts, i));
    const kept = load<i32>(word(tokens + room, from)) + 1;
    store<i32>(word(tokens + room, from), kept);
    left -= 1;
    const weight = load<f32>(weights + <usize>i * stride);
    offer(i, from + kept, load<i32>(word(starts, i + 1)), probabilities, weight);
  }
  const kept = compact(starts, drafts, tokens, room, features, heap == 0);
  if (heap != 0) heapDrop(heap);
  return kept;
}

// Moves what is kept of each draft down over what is not.
function compact(
  starts: usize,
  drafts: i32,
  tokens: usize,
  room: usize,
  features: usize,
  isNoneKept: bool,
): i32 {
  let to: i32 = 0;
  let from = load<i32>(starts);
  for (let i: i32 = 0; i < drafts; i++) {
    const end = load<i32>(word(starts, i + 1));
    let kept: i32 = 0;
    if (from < end) {
      kept = isNoneKept ? 0 : max<i32>(load<i32>(word(tokens + room, from)), 0);
      store<i32>(word(tokens + room, from), -1);
      for (let array: usize = 0; array < 3; array++) {
        const base = tokens + array * room;
        memory.copy(word(base, to), word(base, from), (<usize>kept) << 2);
      }
      memory.copy(
        features + <usize>to * FEATURE_BYTES,
        features + <usize>from * FEATURE_BYTES,
        <usize>kept * FEATURE_BYTES,
      );
    }
    store<i32>(word(starts, i), to);
    to += kept;
    from = end;
  }
  store<i32>(word(starts, drafts), to);
  return to;
}
