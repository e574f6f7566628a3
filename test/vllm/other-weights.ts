// The bundled model with other weights: what a training step would leave behind, made without training.

import { cpSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { MODEL } from "./fleet.ts";

/**
 * Writes a copy whose last norm is scaled: the logits are `scale` times as large, so that at temperature 1 it draws
 * as the bundled model does at temperature 1 / scale. Returns its directory. A safetensors file is the length of its
 * header (8 bytes, little-endian), the header (JSON), and the tensors; those of the model are bfloat16.
 */
export function scaledModel(scale: number): string {
  const folder = mkdtempSync(join(tmpdir(), "foretoken-weights-"));
  cpSync(MODEL, folder, { recursive: true });
  const path = join(folder, "model.safetensors");
  const bytes = Buffer.from(readFileSync(path));
  const headerBytes = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.toString("utf8", 8, 8 + headerBytes));
  const { dtype, data_offsets: offsets } = header["model.norm.weight"];
  if (dtype !== "BF16") throw new Error(`the norm is ${dtype}, not BF16`);
  const word = Buffer.alloc(4);
  for (let at = 8 + headerBytes + offsets[0]; at < 8 + headerBytes + offsets[1]; at += 2) {
    word.writeUInt16LE(0, 0);
    word.writeUInt16LE(bytes.readUInt16LE(at), 2);
    word.writeFloatLE(word.readFloatLE(0) * scale, 0);
    bytes.writeUInt16LE(word.readUInt16LE(2), at);
  }
  writeFileSync(path, bytes);
  return folder;
}
