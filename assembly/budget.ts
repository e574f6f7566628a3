// Cuts the drafts of one step to a budget for the whole batch: best first over all requests by weight times
// probability. The lists are best first themselves and parents precede children, so a prefix of each is
// kept and the set kept is the one with the highest expected gain.

import { drafts, headAt, headCut, wordAt } from "./draft/drafts";
import { heapDrop, heapPop, heapPush, heapTake } from "./heap/heap";

let heap: usize = 0;

function startOf(draft: i32): i32 {
  return load<i32>(wordAt(drafts.starts, draft));
}

function offer(draft: i32, at: i32, end: i32, weight: f32): bool {
  if (at >= end) return true;
  // The lowest key comes first, and NaN would break the order.
  const gain = <f64>weight * <f64>load<f32>(wordAt(drafts.probabilities, at));
  if (!(gain > 0)) return true;
  return heapPush(heap, <u32>draft, -gain) == 0;
}

// Shortens the first `count` drafts to `budget` tokens in all; `weights` is the address of the first draft's weight,
// `stride` bytes before the next one's. Returns the tokens kept. Without room for its heap it keeps nothing.
export function budgetCut(count: i32, weights: usize, stride: usize, budget: i32): i32 {
  if (startOf(count) <= budget) return startOf(count);
  heap = heapTake();
  let left = heap == 0 ? 0 : budget;
  // While drafts are chosen, `parents` of a draft's first token holds how many of its tokens are kept:
  // that parent is -1 always.
  for (let i: i32 = 0; i < count && left > 0; i++) {
    const from = startOf(i);
    const end = startOf(i + 1);
    if (from < end) store<i32>(wordAt(drafts.parents, from), 0);
    if (!offer(i, from, end, load<f32>(weights + <usize>i * stride))) left = 0;
  }
  while (left > 0) {
    const i = heapPop(heap);
    if (i < 0) break;
    const from = startOf(i);
    const kept = load<i32>(wordAt(drafts.parents, from)) + 1;
    store<i32>(wordAt(drafts.parents, from), kept);
    left -= 1;
    offer(i, from + kept, startOf(i + 1), load<f32>(weights + <usize>i * stride));
  }
  const kept = compact(count, heap == 0);
  if (heap != 0) heapDrop(heap);
  return kept;
}

// Moves what is kept of each draft down over what is not.
function compact(count: i32, isNoneKept: bool): i32 {
  let to: i32 = 0;
  let from = startOf(0);
  for (let i: i32 = 0; i < count; i++) {
    const end = startOf(i + 1);
    let kept: i32 = 0;
    if (from < end) {
      kept = isNoneKept ? 0 : max<i32>(load<i32>(wordAt(drafts.parents, from)), 0);
      store<i32>(wordAt(drafts.parents, from), -1);
      wordsMove(drafts.tokens, to, from, kept);
      wordsMove(drafts.parents, to, from, kept);
      wordsMove(drafts.probabilities, to, from, kept);
      if (kept < end - from) headCut(headAt(i), kept);
    }
    store<i32>(wordAt(drafts.starts, i), to);
    to += kept;
    from = end;
  }
  store<i32>(wordAt(drafts.starts, count), to);
  return to;
}

function wordsMove(array: usize, to: i32, from: i32, count: i32): void {
  memory.copy(wordAt(array, to), wordAt(array, from), (<usize>count) << 2);
}
