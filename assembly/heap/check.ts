// Checks a heap: returns 0 if it is correct, else the number of the broken rule.

import { ENTRY_BYTES, H_COUNT, H_ENTRIES, H_IDS, H_PLACES, placeOf } from "./heap";

export function heapCheck(heap: usize): i32 {
  const entries: usize = load<u32>(heap, H_ENTRIES);
  const count = load<u32>(heap, H_COUNT);
  for (let i: u32 = 0; i < count; i++) {
    const entry = entries + <usize>i * ENTRY_BYTES;
    const id = load<u32>(entry, 8);
    // 1: every entry is found by its id.
    if (placeOf(heap, id) != i + 1) return 1;
    if (i == 0) continue;
    const above = entries + <usize>((i - 1) >> 2) * ENTRY_BYTES;
    const key = load<f64>(entry);
    const keyAbove = load<f64>(above);
    // 2: no entry is before the one above it.
    if (key < keyAbove || (key == keyAbove && id < load<u32>(above, 8))) return 2;
  }
  // 3: the index has no id that the heap lacks.
  let places: u32 = 0;
  const ids = load<u32>(heap, H_IDS);
  const table: usize = load<u32>(heap, H_PLACES);
  for (let id: u32 = 0; id < ids; id++) if (load<u32>(table + ((<usize>id) << 2)) != 0) places += 1;
  return places == count ? 0 : 3;
}
