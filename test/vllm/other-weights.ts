// The bundled model with other weights: what a training step would leave behind, made without training.

import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { writeOtherSafetensors } from "../faults/chaos/weights.ts";
import { MODEL } from "./fleet.ts";

/**
 * Writes a copy whose last norm is scaled: the logits are `scale` times as large, so that at temperature 1 it draws
 * as the bundled model does at temperature 1 / scale. Returns its directory.
 */
export function scaledModel(scale: number): string {
  const folder = mkdtempSync(join(tmpdir(), "foretoken-weights-"));
  writeOtherSafetensors(MODEL, folder, scale);
  return folder;
}
