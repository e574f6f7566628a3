/** The quantile at `part` (0.5: the median); undefined: there are no values. */
export function quantileOf(values: ArrayLike<number>, part: number): number | undefined {
  return selectQuantile(new Float64Array(values), part);
}

/** Like `quantileOf`, for the values in [from, end), which it reorders. O(n) on average (Hoare's quickselect). */
export function selectQuantile(values: Float64Array, part: number, from = 0, end = values.length) {
  const at = from + Math.min(end - from - 1, Math.floor(part * (end - from)));
  let low = from;
  let high = end - 1;
  while (low < high) {
    const pivot = values[at] as number;
    let i = low;
    let j = high;
    while (i <= j) {
      while ((values[i] as number) < pivot) i += 1;
      while (pivot < (values[j] as number)) j -= 1;
      if (i > j) break;
      const smaller = values[j] as number;
      values[j] = values[i] as number;
      values[i] = smaller;
      i += 1;
      j -= 1;
    }
    if (j < at) low = i;
    if (at < i) high = j;
  }
  return values[at];
}
