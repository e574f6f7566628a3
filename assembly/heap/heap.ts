// Indexed min-heaps: entries are dense integer ids with a 64-bit key, ordered by (key, id), so that the
// order never depends on arrival. Four children a node: fewer cache lines than two. Push, pop, update
// and remove are O(log n), peek and has O(1). NaN keys are refused by the host.

import { STATUS_ABSENT, STATUS_DUPLICATE, STATUS_FULL, STATUS_INVALID, STATUS_OK } from "../abi";
import { CHUNK_BYTES, chunkTake, largeGiveBack, largeTake, poolHasRoom } from "../memory/pool";

// Descriptor: magic, entries, their capacity, count, position table, its capacity.
const H_MAGIC: usize = 0;
export const H_ENTRIES: usize = 4;
const H_CAPACITY: usize = 8;
export const H_COUNT: usize = 12;
export const H_PLACES: usize = 16;
export const H_IDS: usize = 20;
const DESCRIPTOR_BYTES: usize = 32;
const HANDLE_MAX: u32 = (1 << 27) - 1;
const MAGIC: u32 = 0x68656170;
export const ENTRY_BYTES: usize = 16;
const ID_MAX: u32 = 1 << 24;

let descriptorFree: usize = 0;

// Handles are addresses in units of a descriptor, so that they stay positive beyond 2 GiB.
export function heapHandle(heap: usize): i32 {
  return <i32>(heap >> 5);
}

// 0 for an invalid handle: a larger number would name another heap, its low bits shifted out.
export function heapAt(handle: i32): usize {
  return <u32>handle <= HANDLE_MAX ? (<usize>(<u32>handle)) << 5 : 0;
}

export function isHeap(heap: usize): bool {
  if (heap < __heap_base) return false;
  if (heap > ((<usize>memory.size()) << 16) - DESCRIPTOR_BYTES) return false;
  return load<u32>(heap, H_MAGIC) == MAGIC;
}

export function heapTake(): usize {
  if (descriptorFree == 0) {
    if (!poolHasRoom(CHUNK_BYTES)) return 0;
    const chunk = chunkTake();
    if (chunk == 0) return 0;
    for (let at = chunk; at < chunk + CHUNK_BYTES; at += DESCRIPTOR_BYTES) {
      store<u32>(at, 0, H_MAGIC);
      store<u32>(at, <u32>descriptorFree, 4);
      descriptorFree = at;
    }
  }
  const heap = descriptorFree;
  descriptorFree = load<u32>(heap, 4);
  memory.fill(heap, 0, DESCRIPTOR_BYTES);
  store<u32>(heap, MAGIC, H_MAGIC);
  return heap;
}

export function heapDrop(heap: usize): void {
  const capacity: usize = load<u32>(heap, H_CAPACITY);
  const ids: usize = load<u32>(heap, H_IDS);
  if (capacity != 0) largeGiveBack(load<u32>(heap, H_ENTRIES), capacity * ENTRY_BYTES);
  if (ids != 0) largeGiveBack(load<u32>(heap, H_PLACES), ids << 2);
  store<u32>(heap, 0, H_MAGIC);
  store<u32>(heap, <u32>descriptorFree, 4);
  descriptorFree = heap;
}

// Replaces an area by one of twice `bytes` or more; 0 if there is no room.
function grown(area: usize, bytes: usize, wanted: usize): usize {
  let size = max<usize>(bytes, CHUNK_BYTES);
  while (size < wanted) size <<= 1;
  if (!poolHasRoom(size)) return 0;
  const wider = largeTake(size);
  if (wider == 0) return 0;
  memory.copy(wider, area, bytes);
  memory.fill(wider + bytes, 0, size - bytes);
  if (bytes != 0) largeGiveBack(area, bytes);
  return wider;
}

function roundUp(bytes: usize): usize {
  let size = CHUNK_BYTES;
  while (size < bytes) size <<= 1;
  return size;
}

function reserve(heap: usize, id: u32): bool {
  const ids: usize = load<u32>(heap, H_IDS);
  if (<usize>id >= ids) {
    const wanted = roundUp((<usize>id + 1) << 2);
    const places = grown(load<u32>(heap, H_PLACES), ids << 2, wanted);
    if (places == 0) return false;
    store<u32>(heap, <u32>places, H_PLACES);
    store<u32>(heap, <u32>(wanted >> 2), H_IDS);
  }
  const capacity: usize = load<u32>(heap, H_CAPACITY);
  if (<usize>load<u32>(heap, H_COUNT) == capacity) {
    const wanted = roundUp((capacity + 1) * ENTRY_BYTES);
    const entries = grown(load<u32>(heap, H_ENTRIES), capacity * ENTRY_BYTES, wanted);
    if (entries == 0) return false;
    store<u32>(heap, <u32>entries, H_ENTRIES);
    store<u32>(heap, <u32>(wanted / ENTRY_BYTES), H_CAPACITY);
  }
  return true;
}

// Index of the id's entry plus one; 0: not in the heap.
export function placeOf(heap: usize, id: u32): u32 {
  if (id >= load<u32>(heap, H_IDS)) return 0;
  return load<u32>(<usize>load<u32>(heap, H_PLACES) + ((<usize>id) << 2));
}

function put(entries: usize, places: usize, at: u32, key: f64, id: u32): void {
  const entry = entries + <usize>at * ENTRY_BYTES;
  store<f64>(entry, key);
  store<u32>(entry, id, 8);
  store<u32>(places + ((<usize>id) << 2), at + 1);
}

function isBefore(entry: usize, key: f64, id: u32): bool {
  const seen = load<f64>(entry);
  return seen < key || (seen == key && load<u32>(entry, 8) < id);
}

// Moves the entry up or down from the hole `from` to where it belongs.
function settle(heap: usize, from: u32, key: f64, id: u32): void {
  const entries: usize = load<u32>(heap, H_ENTRIES);
  const places: usize = load<u32>(heap, H_PLACES);
  const count = load<u32>(heap, H_COUNT);
  let at = from;
  while (at > 0) {
    const above = (at - 1) >> 2;
    const entry = entries + <usize>above * ENTRY_BYTES;
    if (isBefore(entry, key, id)) break;
    put(entries, places, at, load<f64>(entry), load<u32>(entry, 8));
    at = above;
  }
  while (true) {
    const child = at * 4 + 1;
    if (child >= count) break;
    let best = entries + <usize>child * ENTRY_BYTES;
    const end = entries + <usize>min<u32>(child + 4, count) * ENTRY_BYTES;
    for (let other = best + ENTRY_BYTES; other < end; other += ENTRY_BYTES) {
      if (isBefore(other, load<f64>(best), load<u32>(best, 8))) best = other;
    }
    if (!isBefore(best, key, id)) break;
    put(entries, places, at, load<f64>(best), load<u32>(best, 8));
    at = <u32>((best - entries) / ENTRY_BYTES);
  }
  put(entries, places, at, key, id);
}

export function heapPush(heap: usize, id: u32, key: f64): i32 {
  if (id >= ID_MAX) return STATUS_INVALID;
  if (placeOf(heap, id) != 0) return STATUS_DUPLICATE;
  if (!reserve(heap, id)) return STATUS_FULL;
  const count = load<u32>(heap, H_COUNT);
  store<u32>(heap, count + 1, H_COUNT);
  settle(heap, count, key, id);
  return STATUS_OK;
}

// The id with the lowest (key, id), or STATUS_ABSENT.
export function heapPeek(heap: usize): i32 {
  if (load<u32>(heap, H_COUNT) == 0) return STATUS_ABSENT;
  return load<i32>(<usize>load<u32>(heap, H_ENTRIES), 8);
}

export function heapPop(heap: usize): i32 {
  const id = heapPeek(heap);
  if (id >= 0) removeAt(heap, 0, <u32>id);
  return id;
}

function removeAt(heap: usize, at: u32, id: u32): void {
  const entries: usize = load<u32>(heap, H_ENTRIES);
  const last = load<u32>(heap, H_COUNT) - 1;
  store<u32>(heap, last, H_COUNT);
  store<u32>(<usize>load<u32>(heap, H_PLACES) + ((<usize>id) << 2), 0);
  if (at == last) return;
  const moved = entries + <usize>last * ENTRY_BYTES;
  settle(heap, at, load<f64>(moved), load<u32>(moved, 8));
}

export function heapRemove(heap: usize, id: u32): i32 {
  const place = placeOf(heap, id);
  if (place == 0) return STATUS_ABSENT;
  removeAt(heap, place - 1, id);
  return STATUS_OK;
}

export function heapUpdate(heap: usize, id: u32, key: f64): i32 {
  const place = placeOf(heap, id);
  if (place == 0) return STATUS_ABSENT;
  settle(heap, place - 1, key, id);
  return STATUS_OK;
}

// NaN if the id is not in the heap.
export function heapKey(heap: usize, id: u32): f64 {
  const place = placeOf(heap, id);
  if (place == 0) return NaN;
  return load<f64>(<usize>load<u32>(heap, H_ENTRIES) + <usize>(place - 1) * ENTRY_BYTES);
}
