// The message about an unknown name of a field: it suggests the nearest known name, or lists all.

/** The message about a name that is not in `known`. */
export function unknownName(name: string, known: readonly string[]): string {
  const bound = Math.max(1, Math.floor(name.length / 4));
  const [nearest] = known
    .map((one) => ({ one, distance: distanceOf(plain(name), plain(one)) }))
    .filter(({ distance }) => distance <= bound)
    .sort((a, b) => a.distance - b.distance);
  return nearest === undefined
    ? `is not known; known are ${known.toSorted().join(", ")}`
    : `is not known; did you mean ${nearest.one}?`;
}

/** The name without case and separators: maxTokens, max-tokens and max_tokens are alike. */
function plain(name: string): string {
  return name.toLowerCase().replace(/[^a-z0-9]/g, "");
}

const CHARACTERS_MAX = 64;

/** Levenshtein distance; Infinity where `a` is too long for a name. */
function distanceOf(a: string, b: string): number {
  if (a.length > CHARACTERS_MAX) return Number.POSITIVE_INFINITY;
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= b.length; j += 1) {
      const replaced = (row[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1);
      next.push(Math.min(replaced, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1));
    }
    row = next;
  }
  return row[b.length] ?? 0;
}
