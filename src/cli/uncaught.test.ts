// In a process of its own: a test runner has a net itself.

import { expect, test } from "bun:test";
import { join } from "node:path";

const NET = join(import.meta.dir, "uncaught.ts");

async function run(code: string): Promise<{ status: number; lines: string[] }> {
  const script = `
    import { catchUncaught } from ${JSON.stringify(NET)};
    const remove = catchUncaught((level, event, fields) => console.log(event, String(fields?.error).split("\\n")[0]));
    ${code}
  `;
  const child = Bun.spawn([process.execPath, "-e", script], { stdout: "pipe", stderr: "pipe" });
  const [text, status] = await Promise.all([new Response(child.stdout).text(), child.exited]);
  return { status, lines: text.trim().split("\n") };
}

test("uncaught: exceptions of timers and rejections are reported, and the process continues", async () => {
  const { status, lines } = await run(`
    setTimeout(() => { throw new Error("timer"); }, 1);
    queueMicrotask(() => { throw new Error("microtask"); });
    Promise.reject(new Error("promise"));
    setTimeout(() => { console.log("alive"); remove(); }, 50);
  `);
  expect(status).toBe(0);
  expect(lines.toSorted()).toEqual([
    "alive",
    "uncaught Error: microtask",
    "uncaught Error: timer",
    "unhandled_rejection Error: promise",
  ]);
}, 180_000);

test("uncaught: what comes again and again ends the process", async () => {
  const { status, lines } = await run(`setInterval(() => { throw new Error("x"); }, 1);`);
  expect(status).toBe(1);
  expect(lines.length).toBe(18);
  expect(lines.at(-1)).toBe("broken 17 such errors in 60 s");
}, 180_000);
