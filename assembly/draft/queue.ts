// A tree's candidates that wait to be drafted, the most probable first; ties are decided by parent and token, so that
// replicas draft alike. A binary heap of a fixed size; it knows no automaton.

// Far more than can wait, at the least probability that a draft token may have each.
const QUEUE_MAX: i32 = 1024;

@unmanaged
class Item {
  probability: f64;
  state: usize;
  token: u32;
  parent: i32;
}

const ITEM_BYTES: usize = offsetof<Item>();
const queue: usize = memory.data((QUEUE_MAX + 1) * ITEM_BYTES, 16);
let queueCount: i32 = 0;

export function queueClear(): void {
  queueCount = 0;
}

export function isQueueEmpty(): bool {
  return queueCount == 0;
}

function isBefore(a: Item, b: Item): bool {
  if (a.probability != b.probability) return a.probability > b.probability;
  if (a.parent != b.parent) return a.parent < b.parent;
  return a.token < b.token;
}

export function itemAt(index: i32): Item {
  return changetype<Item>(queue + <usize>index * ITEM_BYTES);
}

function itemCopy(to: Item, from: Item): void {
  to.probability = from.probability;
  to.state = from.state;
  to.token = from.token;
  to.parent = from.parent;
}

// The item being put in its place.
const held = itemAt(QUEUE_MAX);

export function push(probability: f64, state: usize, token: u32, parent: i32): void {
  if (queueCount == QUEUE_MAX) return;
  held.probability = probability;
  held.state = state;
  held.token = token;
  held.parent = parent;
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
