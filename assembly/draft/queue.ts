// The tree draft's candidates that wait for their turn, the most probable first; ties are decided by parent
// and token, so that replicas draft alike. Of a fixed size; it knows no automaton.

import { FEATURE_BYTES } from "./mixer";

// Far more than can wait at propose.ts's floor of probabilities each.
const QUEUE_MAX: i32 = 1024;
// Probability, state, token, parent, reason.
const ITEM_BYTES: usize = 56;
const queue: usize = memory.data(56 * 1024, 16);
let queueCount: i32 = 0;

export function queueClear(): void {
  queueCount = 0;
}

export function isQueueEmpty(): bool {
  return queueCount == 0;
}

// An item of the queue: probability, state, token, parent, reason.
function isBefore(a: usize, b: usize): bool {
  const pa = load<f64>(a);
  const pb = load<f64>(b);
  if (pa != pb) return pa > pb;
  const ra = load<i32>(a, 16);
  const rb = load<i32>(b, 16);
  if (ra != rb) return ra < rb;
  return load<u32>(a, 12) < load<u32>(b, 12);
}

export function itemAt(index: i32): usize {
  return queue + <usize>index * ITEM_BYTES;
}

function itemCopy(to: usize, from: usize): void {
  store<u64>(to, load<u64>(from));
  store<u64>(to, load<u64>(from, 8), 8);
  store<u64>(to, load<u64>(from, 16), 16);
  memory.copy(to + 24, from + 24, FEATURE_BYTES);
}

const held: usize = memory.data(56, 16);

export function push(probability: f64, state: usize, token: u32, parent: i32, from: usize): void {
  if (queueCount == QUEUE_MAX) return;
  store<f64>(held, probability);
  store<u32>(held, <u32>state, 8);
  store<u32>(held, token, 12);
  store<i32>(held, parent, 16);
  memory.copy(held + 24, from, FEATURE_BYTES);
  let at = queueCount++;
  while (at > 0) {
    const above = (at - 1) >> 1;
    if (!isBefore(held, itemAt(above))) break;
    itemCopy(itemAt(at), itemAt(above));
    at = above;
  }
  itemCopy(itemAt(at), held);
}

// Removes the first item.
export function settle(): void {
  queueCount -= 1;
  const moved = itemAt(queueCount);
  let at: i32 = 0;
  while (true) {
    let child = at * 2 + 1;
    if (child >= queueCount) break;
    if (child + 1 < queueCount && isBefore(itemAt(child + 1), itemAt(child))) child += 1;
    if (!isBefore(itemAt(child), moved)) break;
    itemCopy(itemAt(at), itemAt(child));
    at = child;
  }
  itemCopy(itemAt(at), moved);
}
