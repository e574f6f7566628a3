import { expect, test } from "bun:test";
import { mkdtempSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { weightEpoch } from "../core/base/ids.ts";
import type { HeldWeights } from "../core/journal/held-weights.ts";
import { WeightsFile } from "./weights-file.ts";

const SLOT_BYTES = 16_384;
const folder = () => mkdtempSync(join(tmpdir(), "foretoken-weights-"));
const heldAt = (epoch: number, path = `/ckpt/${epoch}`): HeldWeights => ({
  epoch: weightEpoch(epoch),
  version: `step-${epoch}`,
  weights: null,
  base: { kind: "load", path, version: null, options: {} },
});

function opened(at: string, errors: unknown[] = []): WeightsFile {
  return new WeightsFile(at, (error) => errors.push(error));
}

test("weights file: the next process reads what was written last, and the file never grows", async () => {
  const at = folder();
  const first = opened(at);
  expect(first.held).toBeNull();
  const canaries = { noise: 0.5 };
  for (let epoch = 1; epoch <= 5; epoch += 1) first.write({ ...heldAt(epoch), canaries });
  await first.close();
  expect(opened(at).held).toEqual({ ...heldAt(5), canaries });
  expect(statSync(join(at, "weights")).size).toBe(32_768);
});

test("weights file: a write that a crash cut leaves the one before", async () => {
  const at = folder();
  const first = opened(at);
  first.write(heldAt(1));
  first.write(heldAt(2));
  await first.close();
  const path = join(at, "weights");
  const bytes = readFileSync(path);
  // The second write is in the first slot.
  bytes.fill(0, 40, 60);
  writeFileSync(path, bytes);
  expect(opened(at).held).toEqual(heldAt(1));
  // No crash spoils both; without either, the weights are not known to be the first.
  bytes.fill(0, SLOT_BYTES + 40, SLOT_BYTES + 60);
  writeFileSync(path, bytes);
  expect(() => opened(at)).toThrow(`${path} is of another program`);
  writeFileSync(path, "other");
  expect(() => opened(at)).toThrow(`${path} is of another program`);
});

test("weights file: of a request that is too long only the name stays, and a name that is too long is an error", async () => {
  const errors: unknown[] = [];
  const at = folder();
  const file = opened(at, errors);
  await file.write(heldAt(1, "x".repeat(20_000)));
  expect(opened(at).held).toEqual({ ...heldAt(1), base: "unknown", doubted: [] });
  await file.write({ ...heldAt(2), version: "v".repeat(20_000) });
  expect(String(errors)).toContain("the name of the weights has 20000 characters");
  expect(opened(at).held?.version).toBe("step-1");
  await file.close();
});
