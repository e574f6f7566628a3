// What this engine calls of Linux's C library, and JavaScript memory whose address C may keep.

import { dlopen, ptr } from "bun:ffi";

/** Constants of Linux: clock_gettime(2), prctl(2), signal(7), setrlimit(2). */
const THREAD_CPU_TIME = 3;
const PR_SET_PDEATHSIG = 1;
const SIGKILL = 9;
const RLIMIT_CORE = 4;

function open() {
  return dlopen("libc.so.6", {
    clock_gettime: { args: ["i32", "ptr"], returns: "i32" },
    memfd_create: { args: ["ptr", "u32"], returns: "i32" },
    prctl: { args: ["i32", "u64"], returns: "i32" },
    setrlimit: { args: ["i32", "ptr"], returns: "i32" },
  }).symbols;
}

let opened: ReturnType<typeof open> | null = null;

export function libc() {
  opened ??= open();
  return opened;
}

/** Bytes with an ArrayBuffer of their own, since a small typed array without one may be moved in memory. */
export function nativeBytes(bytes: number): Uint8Array<ArrayBuffer> {
  return new Uint8Array(new ArrayBuffer(bytes));
}

/** `text` as UTF-8 with a final zero. */
export function cString(text: string): Uint8Array<ArrayBuffer> {
  const utf8 = new TextEncoder().encode(text);
  const bytes = nativeBytes(utf8.length + 1);
  bytes.set(utf8);
  return bytes;
}

/** Seconds and nanoseconds. */
const time = new BigInt64Array(new ArrayBuffer(16));

/** CPU time of the calling thread, in ms: a step timed with it is not longer because the core was taken away. */
export function threadCpuMs(): number {
  libc().clock_gettime(THREAD_CPU_TIME, ptr(time));
  return Number(time[0]) * 1e3 + Number(time[1]) / 1e6;
}

/** Makes this process end with its parent, and leave no core file if it crashes. */
export function endWithParent(): void {
  libc().prctl(PR_SET_PDEATHSIG, SIGKILL);
  libc().setrlimit(RLIMIT_CORE, ptr(nativeBytes(16)));
}
