import { afterAll, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { AppError } from "../core/base/errors.ts";
import { weightEpoch, weightsId, workerId } from "../core/base/ids.ts";
import {
  type FinishedResponse,
  formatFloat32,
  formatLine,
} from "../server/rollouts/response-line.ts";
import { ResponseWriter } from "./responses.ts";

const root = mkdtempSync(join(tmpdir(), "foretoken-responses-"));
let mounted: string | null = null;
afterAll(() => {
  if (mounted !== null) spawnSync("umount", ["-l", mounted]);
  rmSync(root, { recursive: true, force: true });
});

const F16 = weightsId("f16-0123456789abcdef");

function response(overrides: Partial<FinishedResponse> = {}): FinishedResponse {
  return {
    group: "g",
    index: 0,
    promptTokenIds: Int32Array.of(5, 6),
    tokenIds: Int32Array.of(1, 2, 3),
    text: 'a "b"\n\u2028 🧮',
    logprobs: Float32Array.of(-0.1, -1.3862944, 0),
    finishReason: "stop",
    chunks: [
      { workerId: workerId(1), epoch: weightEpoch(4), weights: null, offset: 0, tokens: 2 },
      { workerId: workerId(0), epoch: weightEpoch(4), weights: F16, offset: 2, tokens: 1 },
    ],
    ...overrides,
  };
}

test("formatLine: holds the agreed fields in the agreed shape", () => {
  const line = formatLine(response());
  expect(line).not.toContain("\n");
  expect(JSON.parse(line)).toEqual({
    group: "g",
    index: 0,
    prompt_token_ids: [5, 6],
    token_ids: [1, 2, 3],
    text: 'a "b"\n\u2028 🧮',
    logprobs: [-0.1, -1.3862944, 0],
    finish_reason: "stop",
    weight_epoch: 4,
    chunks: [
      { worker: 1, offset: 0, tokens: 2, weight_epoch: 4 },
      { worker: 0, offset: 2, tokens: 1, weight_epoch: 4, weights: F16 },
    ],
  });
});

test("formatLine: tokens of several epochs have no common one, and each chunk has its own", () => {
  const chunk = (epoch: number, offset: number, tokens: number) => ({
    ...{ workerId: workerId(0), epoch: weightEpoch(epoch), weights: null, offset, tokens },
  });
  const chunks = [chunk(3, 0, 0), chunk(4, 0, 2), chunk(5, 2, 1)];
  const mixed = JSON.parse(formatLine(response({ chunks, versionOf: (epoch) => `step-${epoch}` })));
  expect(mixed.weight_epoch).toBeNull();
  expect(mixed.chunks[2]).toEqual({
    ...{ worker: 0, offset: 2, tokens: 1, weight_epoch: 5, weight_version: "step-5" },
  });
  // A chunk without tokens has no part in it.
  const one = JSON.parse(formatLine(response({ chunks: [chunk(3, 0, 0), chunk(4, 0, 3)] })));
  expect(one.weight_epoch).toBe(4);
});

test("formatFloat32: reads back as the same bits, and JSON takes it", () => {
  fc.assert(
    fc.property(fc.float({ noNaN: true, noDefaultInfinity: true }), (value) => {
      const text = formatFloat32(value);
      expect(Math.fround(JSON.parse(text))).toBe(value);
      const digits = text
        .replace(/e.*/, "")
        .replaceAll(/[-.]/g, "")
        .replaceAll(/^0+|0+$/g, "");
      expect(digits.length).toBeLessThanOrEqual(9);
    }),
    { numRuns: 2000 },
  );
});

test("ResponseWriter: makes the folders, and a group is in the file when writeGroup returns", () => {
  const path = join(root, "deep", "er", "responses.jsonl");
  const writer = new ResponseWriter(path);
  expect(readFileSync(path, "utf8")).toBe("");
  writer.writeGroup([response({ index: 0 }), response({ index: 1 })]);
  expect(readFileSync(path, "utf8").split("\n")).toHaveLength(3);
  writer.writeGroup([response({ group: "h" })]);
  const lines = readFileSync(path, "utf8").trimEnd().split("\n");
  expect(lines.map((line) => JSON.parse(line).group)).toEqual(["g", "g", "h"]);
  writer.close();
  writer.close();
});

test("ResponseWriter: a file that cannot be made is output_failed, with path and reason", () => {
  mkdirSync(join(root, "folder"));
  writeFileSync(join(root, "file"), "");
  for (const [path, reason] of [
    [join(root, "folder"), "EISDIR"],
    [join(root, "file", "responses.jsonl"), "E"],
  ] as const) {
    try {
      new ResponseWriter(path);
      throw new Error("was not refused");
    } catch (error) {
      expect(error).toBeInstanceOf(AppError);
      expect(error).toMatchObject({ code: "output_failed" });
      expect(String(error)).toContain(path);
      expect(String(error)).toContain(reason);
    }
  }
});

/** Mounts a file system of 64 KiB; says why where that is impossible. */
function mountSmall(directory: string): string | null {
  if (process.platform !== "linux") return "needs Linux";
  if (process.getuid?.() !== 0) return "needs root to mount a small file system";
  mkdirSync(directory);
  const mount = spawnSync("mount", ["-t", "tmpfs", "-o", "size=65536", "tmpfs", directory]);
  if (mount.status !== 0) return "mounting a tmpfs is not permitted here";
  mounted = directory;
  return null;
}

const small = join(root, "small");
const noMount = mountSmall(small);

test.skipIf(noMount !== null)(
  `ResponseWriter: on a full disk the groups before stay whole${noMount === null ? "" : ` (skipped: ${noMount})`}`,
  () => {
    const path = join(small, "responses.jsonl");
    const writer = new ResponseWriter(path);
    const group = Array.from({ length: 8 }, (_, index) =>
      response({ index, text: "x".repeat(3000) }),
    );
    const bytes = group.reduce((sum, one) => sum + formatLine(one).length + 1, 0);
    let written = 0;
    const fill = () => {
      for (; written < 10; written += 1) writer.writeGroup(group);
    };
    expect(fill).toThrow("ENOSPC");
    expect(written).toBeGreaterThan(0);
    const text = readFileSync(path, "utf8");
    expect(text.endsWith("}\n")).toBe(true);
    expect(text.trimEnd().split("\n")).toHaveLength(8 * written);
    expect(statSync(path).size).toBeGreaterThan(bytes * written - 8);
    writer.close();
  },
);

test("ResponseWriter: a process killed between two groups leaves whole lines", () => {
  const path = join(root, "killed.jsonl");
  const script = `
    import { ResponseWriter } from ${JSON.stringify(join(import.meta.dir, "responses.ts"))};
    const writer = new ResponseWriter(${JSON.stringify(path)});
    const one = (index) => ({ group: "g", index, promptTokenIds: Int32Array.of(1),
      tokenIds: new Int32Array(2000), text: "x".repeat(20000), logprobs: new Float32Array(2000),
      finishReason: "length", chunks: [] });
    writer.writeGroup([one(0), one(1)]);
    process.kill(process.pid, "SIGKILL");`;
  const child = spawnSync(process.execPath, ["-e", script]);
  expect(child.signal).toBe("SIGKILL");
  const lines = readFileSync(path, "utf8").split("\n");
  expect(lines.pop()).toBe("");
  expect(lines.map((line) => JSON.parse(line).index)).toEqual([0, 1]);
});
