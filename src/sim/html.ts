export function htmlReport(a: unknown, b: unknown): string {
  return String(a) + String(b);
}
