// One group's memory: its descriptor and the blocks carved from its chunks. Blocks of 16 to 2,048 B
// come from the open chunk or the group's free lists; larger ones are areas of their own. Everything
// goes back at once when the group is dropped; a block that cannot be had marks the group as dead.

import {
  CHUNK_BYTES,
  CHUNK_HEADER_BYTES,
  chunksGiveBack,
  chunkTake,
  largeGiveBack,
  largeTake,
} from "../memory/pool";

// The descriptor, 32-bit words at these byte offsets.
export const G_MAGIC: usize = 0;
export const G_ROOT: usize = 4;
const G_CHUNK_HEAD: usize = 8;
const G_CHUNK_TAIL: usize = 12;
const G_CHUNK_COUNT: usize = 16;
const G_OPEN: usize = 20;
const G_OPEN_END: usize = 24;
const G_LARGE: usize = 28;
const G_LARGE_BYTES: usize = 32;
export const G_SEQS: usize = 36;
export const G_SEQ_CAPACITY: usize = 40;
export const G_SEQ_COUNT: usize = 44;
export const G_TOKENS: usize = 48;
// The class of the prompt's bounded suffix before its last token.
export const G_PROMPT_BEFORE: usize = 52;
export const G_STARTED: usize = 56;
export const G_DEAD: usize = 60;
// The record of the prompt's end, laid out like a sequence (tree.ts): 64 B.
export const G_PROMPT: usize = 64;
export const G_STATES: usize = 128;
const G_FREE: usize = 132;
const FREE_CLASSES: usize = 8;
// No two groups of the instance have the same.
export const G_SERIAL: usize = 164;
const DESCRIPTOR_BYTES: usize = 256;
const HANDLE_MAX: u32 = (1 << 24) - 1;
const MAGIC: u32 = 0x67726f75;

const SMALL_MAX: usize = 2048;
// A large block begins with the next one's address and its size, so that the group can give it back.
const LARGE_HEADER_BYTES: usize = 8;

let descriptorFree: usize = 0;
let serials: u32 = 0;

export function descriptorTake(): usize {
  if (descriptorFree == 0) {
    const chunk = chunkTake();
    if (chunk == 0) return 0;
    for (let at = chunk; at < chunk + CHUNK_BYTES; at += DESCRIPTOR_BYTES) {
      store<u32>(at, 0, G_MAGIC);
      store<u32>(at, <u32>descriptorFree, G_ROOT);
      descriptorFree = at;
    }
  }
  const group = descriptorFree;
  descriptorFree = load<u32>(group, G_ROOT);
  memory.fill(group, 0, DESCRIPTOR_BYTES);
  store<u32>(group, MAGIC, G_MAGIC);
  serials += 1;
  store<u32>(group, serials, G_SERIAL);
  return group;
}

// Handles are addresses in units of a descriptor, so that they stay positive beyond 2 GiB.
export function groupHandle(group: usize): i32 {
  return <i32>(group >> 8);
}

// 0 for an invalid handle: a larger number would name another group, its low bits shifted out.
export function groupAt(handle: u32): usize {
  return handle <= HANDLE_MAX ? (<usize>handle) << 8 : 0;
}

export function isGroup(group: usize): bool {
  if (group < __heap_base) return false;
  if (group > ((<usize>memory.size()) << 16) - DESCRIPTOR_BYTES) return false;
  return load<u32>(group, G_MAGIC) == MAGIC;
}

// O(1) in the group's tokens: one splice, and one step for each of its few large blocks.
export function arenaDrop(group: usize): void {
  chunksGiveBack(
    load<u32>(group, G_CHUNK_HEAD),
    load<u32>(group, G_CHUNK_TAIL),
    load<u32>(group, G_CHUNK_COUNT),
  );
  let area: usize = load<u32>(group, G_LARGE);
  while (area != 0) {
    const next: usize = load<u32>(area);
    largeGiveBack(area, load<u32>(area, 4));
    area = next;
  }
  store<u32>(group, 0, G_MAGIC);
  store<u32>(group, <u32>descriptorFree, G_ROOT);
  descriptorFree = group;
}

export function arenaBytes(group: usize): usize {
  const chunks: usize = load<u32>(group, G_CHUNK_COUNT);
  return chunks * CHUNK_BYTES + load<u32>(group, G_LARGE_BYTES);
}

function openChunk(group: usize): bool {
  let at: usize = load<u32>(group, G_OPEN);
  let left: usize = <usize>load<u32>(group, G_OPEN_END) - at;
  // What is left of the open chunk serves later requests for small blocks.
  for (let c: usize = FREE_CLASSES; left >= 16; c--) {
    const size: usize = 8 << c;
    if (left < size) continue;
    pushFree(group, at, c - 1);
    at += size;
    left -= size;
  }
  const chunk = chunkTake();
  if (chunk == 0) return false;
  const head: usize = load<u32>(group, G_CHUNK_HEAD);
  store<u32>(chunk, <u32>head);
  if (head == 0) store<u32>(group, <u32>chunk, G_CHUNK_TAIL);
  store<u32>(group, <u32>chunk, G_CHUNK_HEAD);
  store<u32>(group, load<u32>(group, G_CHUNK_COUNT) + 1, G_CHUNK_COUNT);
  store<u32>(group, <u32>(chunk + CHUNK_HEADER_BYTES), G_OPEN);
  store<u32>(group, <u32>(chunk + CHUNK_BYTES), G_OPEN_END);
  return true;
}

function pushFree(group: usize, block: usize, c: usize): void {
  const list = group + G_FREE + (c << 2);
  store<u32>(block, load<u32>(list));
  store<u32>(list, <u32>block);
}

// Class c of a power of two: 16 B << c.
function sizeClass(bytes: usize): usize {
  return <usize>(27 - clz<u32>(<u32>bytes));
}

// A run of any multiple of 8 B up to 2,048 from the open chunk; it cannot be given back singly.
export function runTake(group: usize, bytes: usize): usize {
  let at: usize = load<u32>(group, G_OPEN);
  if (<usize>load<u32>(group, G_OPEN_END) - at < bytes) {
    if (!openChunk(group)) return dead(group);
    at = load<u32>(group, G_OPEN);
  }
  store<u32>(group, <u32>(at + bytes), G_OPEN);
  return at;
}

function dead(group: usize): usize {
  store<u32>(group, 1, G_DEAD);
  return 0;
}

// `bytes` is a power of two >= 16. A block of 4 KiB or more loses LARGE_HEADER_BYTES to its header:
// the address returned has `blockRoom(bytes)` usable bytes behind it.
export function blockTake(group: usize, bytes: usize): usize {
  if (bytes <= SMALL_MAX) {
    const list = group + G_FREE + (sizeClass(bytes) << 2);
    const block: usize = load<u32>(list);
    if (block == 0) return blockSplit(group, bytes);
    store<u32>(list, load<u32>(block));
    return block;
  }
  const area = largeTake(bytes);
  if (area == 0) return dead(group);
  store<u32>(area, load<u32>(group, G_LARGE));
  store<u32>(area, <u32>bytes, 4);
  store<u32>(group, <u32>area, G_LARGE);
  store<u32>(group, load<u32>(group, G_LARGE_BYTES) + <u32>bytes, G_LARGE_BYTES);
  return area + LARGE_HEADER_BYTES;
}

// From the smallest larger free block, else from the open chunk. Without this, what runs leave of their
// chunks would serve the few tables of just that size only.
function blockSplit(group: usize, bytes: usize): usize {
  for (let size = bytes << 1; size <= SMALL_MAX; size <<= 1) {
    const list = group + G_FREE + (sizeClass(size) << 2);
    const block: usize = load<u32>(list);
    if (block == 0) continue;
    store<u32>(list, load<u32>(block));
    for (let half = size >> 1; half >= bytes; half >>= 1) {
      pushFree(group, block + half, sizeClass(half));
    }
    return block;
  }
  return runTake(group, bytes);
}

export function blockRoom(bytes: usize): usize {
  return bytes <= SMALL_MAX ? bytes : bytes - LARGE_HEADER_BYTES;
}

export function blockGiveBack(group: usize, block: usize, bytes: usize): void {
  if (bytes <= SMALL_MAX) {
    pushFree(group, block, sizeClass(bytes));
    return;
  }
  const area = block - LARGE_HEADER_BYTES;
  let link: usize = group + G_LARGE;
  while (load<u32>(link) != <u32>area) link = load<u32>(link);
  store<u32>(link, load<u32>(area));
  store<u32>(group, load<u32>(group, G_LARGE_BYTES) - <u32>bytes, G_LARGE_BYTES);
  largeGiveBack(area, bytes);
}
