// The order of versions that end in a number: "step-9" comes before "step-10". Others have no order.

interface Numbered {
  readonly text: string;
  readonly number: number;
}

/** Longer numbers are times or hashes, and would not be exact. */
const NUMBERED = /^(.*?)(\d{1,15})$/s;

function numbered(version: string): Numbered | null {
  const [, text, digits] = NUMBERED.exec(version) ?? [];
  return text === undefined || digits === undefined ? null : { text, number: Number(digits) };
}

/** Both are numbered alike, and `version` has the greater number. */
export function isLater(version: string, than: string): boolean {
  const [a, b] = [numbered(version), numbered(than)];
  return a !== null && b !== null && a.text === b.text && a.number > b.number;
}
