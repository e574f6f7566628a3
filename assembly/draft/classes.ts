// Lengths and counts in few classes, by which weight vectors and adaptive states are chosen.

// Lengths of contexts by powers of two: 1, 2-3, 4-7, ..., 32 and more.
export const LENGTH_CLASSES: u32 = 6;

export function lengthClass(length: u32): u32 {
  return min<u32>(31 - clz(max<u32>(length, 1)), LENGTH_CLASSES - 1);
}

// Counts in eight classes: 0, 1, 2, 3, 4-5, 6-9, 10-20, more.
export function countClass(count: u32): u32 {
  if (count < 4) return count;
  return count < 6 ? 4 : count < 10 ? 5 : count < 21 ? 6 : 7;
}
