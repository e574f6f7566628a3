// The core's memory: 4 KiB chunks shared by all groups, and power-of-two areas of 4 KiB and more.
// A group owns whole chunks, so dropping it splices its chunk list onto the free list in O(1) and
// nothing fragments. Never takes more than the limit and never traps: 0 means "no room".

export const CHUNK_BYTES: usize = 4096;
// A chunk begins with the address of the group's next chunk; 16 B keep what follows aligned.
export const CHUNK_HEADER_BYTES: usize = 16;
const GROW_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 65536;
// Large areas: class c holds 4 KiB << c, up to 1 GiB.
const LARGE_CLASSES: usize = 19;
// No table takes more than this part of the limit.
const TABLE_PART: usize = 16;
// Addresses near 4 GiB would overflow 32-bit sums.
const ADDRESS_MAX: usize = 0xf0000000;

// Behind the core's static data, at a fixed address: handles are addresses, and equal operations give equal handles
// whatever the static tables take.
const POOL_BEGIN: usize = 124 * CHUNK_BYTES;

const largeFree: usize = memory.data(19 * 4, 16);
let chunkFree: usize = 0;
let topUnused: usize = 0;
let memoryEnd: usize = 0;
let usedBytes: usize = 0;
let freeBytes: usize = 0;
let limitBytes: usize = ADDRESS_MAX;

export function poolUsedBytes(): usize {
  return usedBytes;
}

export function poolLimit(bytes: usize): void {
  limitBytes = min<usize>(bytes, ADDRESS_MAX);
}

// Whether `count` words from `at` on lie in the pool, where all areas are that a host may name.
export function arePoolWords(at: usize, count: u32): bool {
  if (at < POOL_BEGIN || (at & 3) != 0) return false;
  return <u64>at + ((<u64>count) << 2) <= (<u64>memory.size()) << 16;
}

// Whether `bytes` more may be taken, were they taken chunk by chunk.
export function poolHasRoom(bytes: usize): bool {
  if (bytes > limitBytes || usedBytes > limitBytes - bytes) return false;
  if (freeBytes >= bytes) return true;
  return makeUnused(bytes - freeBytes);
}

function makeUnused(bytes: usize): bool {
  if (topUnused == 0) {
    assert(__heap_base <= POOL_BEGIN);
    topUnused = POOL_BEGIN;
    memoryEnd = <usize>memory.size() * PAGE_BYTES;
  }
  if (memoryEnd >= topUnused && memoryEnd - topUnused >= bytes) return true;
  if (bytes > ADDRESS_MAX || topUnused > ADDRESS_MAX - bytes) return false;
  const wanted = topUnused + bytes - memoryEnd;
  const pages = (max<usize>(wanted, GROW_BYTES) + PAGE_BYTES - 1) / PAGE_BYTES;
  if (memory.grow(<i32>pages) < 0) {
    if (memory.grow(<i32>((wanted + PAGE_BYTES - 1) / PAGE_BYTES)) < 0) return false;
  }
  memoryEnd = <usize>memory.size() * PAGE_BYTES;
  return true;
}

export function chunkTake(): usize {
  if (chunkFree == 0) splitLarge();
  let chunk = chunkFree;
  if (chunk != 0) {
    chunkFree = load<u32>(chunk);
    freeBytes -= CHUNK_BYTES;
  } else {
    if (!makeUnused(CHUNK_BYTES)) return 0;
    chunk = topUnused;
    topUnused += CHUNK_BYTES;
  }
  usedBytes += CHUNK_BYTES;
  return chunk;
}

// Gives back a list of `count` chunks linked through their first word.
export function chunksGiveBack(head: usize, tail: usize, count: usize): void {
  if (count == 0) return;
  store<u32>(tail, <u32>chunkFree);
  chunkFree = head;
  assert(usedBytes >= count * CHUNK_BYTES);
  usedBytes -= count * CHUNK_BYTES;
  freeBytes += count * CHUNK_BYTES;
}

// Cuts the smallest free large area into chunks, so that no free memory is out of reach.
function splitLarge(): void {
  for (let c: usize = 0; c < LARGE_CLASSES; c++) {
    const area: usize = load<u32>(largeFree + (c << 2));
    if (area == 0) continue;
    store<u32>(largeFree + (c << 2), load<u32>(area));
    const end = area + (CHUNK_BYTES << c);
    for (let chunk = area; chunk < end; chunk += CHUNK_BYTES) {
      store<u32>(chunk, <u32>chunkFree);
      chunkFree = chunk;
    }
    return;
  }
}

function largeClass(bytes: usize): usize {
  let c: usize = 0;
  while (CHUNK_BYTES << c < bytes) c++;
  return c;
}

// Takes 4 KiB << c bytes, the smallest such size that holds `bytes`.
export function largeTake(bytes: usize): usize {
  const c = largeClass(bytes);
  if (c >= LARGE_CLASSES) return 0;
  const size = CHUNK_BYTES << c;
  let area: usize = load<u32>(largeFree + (c << 2));
  if (area != 0) {
    store<u32>(largeFree + (c << 2), load<u32>(area));
    freeBytes -= size;
  } else {
    if (!makeUnused(size)) return 0;
    area = topUnused;
    topUnused += size;
  }
  usedBytes += size;
  return area;
}

// Takes an area beside what the limit counts, of zeros and never given back; 0 if there is no room.
export function areaTake(bytes: usize): usize {
  const size = (bytes + CHUNK_BYTES - 1) & ~(CHUNK_BYTES - 1);
  if (!makeUnused(size)) return 0;
  const area = topUnused;
  topUnused += size;
  return area;
}

// Takes a table of the core's own, of zeros and never given back, if at most half of the limit is used; 0 if there is no
// room.
export function tableTake(bytes: usize): usize {
  if (bytes > limitBytes / TABLE_PART || usedBytes > limitBytes / 2) return 0;
  const table = areaTake(bytes);
  if (table != 0) usedBytes += (bytes + CHUNK_BYTES - 1) & ~(CHUNK_BYTES - 1);
  return table;
}

export function largeGiveBack(area: usize, bytes: usize): void {
  const c = largeClass(bytes);
  assert(c < LARGE_CLASSES && usedBytes >= CHUNK_BYTES << c);
  store<u32>(area, load<u32>(largeFree + (c << 2)));
  store<u32>(largeFree + (c << 2), <u32>area);
  usedBytes -= CHUNK_BYTES << c;
  freeBytes += CHUNK_BYTES << c;
}
