/** The value below which a part of the values lies; undefined: there are none. Copies and sorts: O(n log n). */
export function quantileOf(values: ArrayLike<number>, part: number): number | undefined {
  const sorted = new Float64Array(values).sort();
  return sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))];
}
