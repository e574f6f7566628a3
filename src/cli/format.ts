// Numbers as people read them: one spelling for the progress display and the tables.

const KILO = 1000;
const MINUTE = 60;

/** Groups digits: 1234567 -> "1,234,567". */
export function formatCount(value: number): string {
  return Math.round(value).toLocaleString("en-US");
}

/** Three significant digits below two minutes, minutes and seconds above. */
export function formatSeconds(seconds: number): string {
  if (seconds >= 2 * MINUTE) return formatClock(seconds);
  const digits = seconds < 9.995 ? 2 : 1;
  return `${seconds.toFixed(digits)} s`;
}

/** Whole seconds as on a clock: "0:07", "12:34", "1:02:03". */
export function formatClock(seconds: number): string {
  const whole = Math.round(seconds);
  const hours = Math.floor(whole / (MINUTE * MINUTE));
  const minutes = Math.floor(whole / MINUTE) % MINUTE;
  const rest = String(whole % MINUTE).padStart(2, "0");
  return hours > 0 ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

/** Bytes in decimal units: "0 B", "512 B", "12.3 MB". */
export function formatBytes(bytes: number): string {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let value = bytes;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= KILO;
    unit += 1;
  }
  const text = unit === 0 || value >= 99.95 ? String(Math.round(value)) : value.toFixed(1);
  return `${text} ${units[unit]}`;
}

/** A share in percent: 0.614 -> "61%". 100% and 0% are shown only if they are exact. */
export function formatShare(share: number): string {
  const percent = Math.round(share * 100);
  if (percent >= 100 && share < 1) return "99%";
  if (percent <= 0 && share > 0) return "1%";
  return `${percent}%`;
}
