// The current weights, in the folder of the journals. A journal records them behind its tokens, and not at all where the disk is
// full; this file's space is taken when it is made, and it is overwritten. So a process that takes the place of this one
// does not go back to weights that the trainer has replaced.

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { join } from "node:path";
import { AppError } from "../core/base/errors.ts";
import { FRAME_HEADER_BYTES, scanFrame, sealFrame } from "../core/journal/frame.ts";
import { baseIn, type HeldWeights, isHeldWeights } from "../core/journal/held-weights.ts";
import { inTime, writeAt } from "./disk-write.ts";

const NAME = "weights";
const FILE_MODE = 0o600;
/** Two, written in turn: a crash in one leaves the other. Canaries of the longest kind take half. */
const SLOT_BYTES = 16_384;
const FILE_BYTES = 2 * SLOT_BYTES;

/** `canaries`: the state of their agreement in that epoch (`fleet/agreement.ts`). `isAwake`: that of `WorkerPool`. `isOpen`: that of `WeightUpdates`. */
export interface WeightsState extends HeldWeights {
  readonly canaries?: unknown;
  readonly isAwake?: boolean | null;
  readonly isOpen?: boolean;
}

interface Slot {
  readonly count: number;
  readonly held: WeightsState;
}

export class WeightsFile {
  readonly #path: string;
  readonly #failed: (error: unknown) => void;
  /** null: nothing was written yet. */
  #file: FileHandle | null = null;
  #newest: Slot | null = null;
  /** Resolves when all that was given has been written, or never will be. */
  #writing: Promise<void> = Promise.resolve();

  /** Goes on with the file's weights, however its process ended. @throws AppError invalid_config: it cannot be read; Error: it cannot be made. */
  constructor(folder: string, failed: (error: unknown) => void) {
    this.#failed = failed;
    const path = join(folder, NAME);
    this.#path = path;
    const bytes = existsSync(path) ? readFileSync(path) : new Uint8Array(0);
    this.#newest = newestIn(bytes);
    // A crash spoils at most the slot that is being written.
    const slots = [bytes.subarray(0, SLOT_BYTES), bytes.subarray(SLOT_BYTES)];
    const isSpoilt = this.#newest === null && slots.every((slot) => slot.some((byte) => byte > 0));
    if (isSpoilt || (bytes.byteLength !== FILE_BYTES && bytes.some((byte) => byte > 0))) {
      throw new AppError("invalid_config", `--journal: ${path} is of another program or release`);
    }
    // The file's space is taken now.
    if (bytes.byteLength < FILE_BYTES) {
      writeFileSync(path, new Uint8Array(FILE_BYTES), { mode: FILE_MODE });
    }
  }

  /** The weights that were recorded last, by this process or an earlier one; null: none were. */
  get held(): WeightsState | null {
    return this.#newest?.held ?? null;
  }

  write(held: WeightsState): void {
    const count = (this.#newest?.count ?? 0) + 1;
    // If it is too long, only the trainer has the weights.
    const short = { ...held, base: "unknown", doubted: held.doubted?.length ? "all" : [] } as const;
    const slot = slotOf({ count, held }) ?? slotOf({ count, held: short });
    if (slot === null) {
      const problem = `the name of the weights has ${held.version.length} characters`;
      this.#failed(new AppError("output_failed", `--journal: ${problem}, too many to be kept`));
      return;
    }
    this.#newest = { count, held };
    this.#writing = this.#writing.then(() => this.#put(slot, (count % 2) * SLOT_BYTES));
  }

  /** Resolves when all that was given has been written, or never will be: after some seconds at most. */
  settled(): Promise<void> {
    return this.#writing;
  }

  async close(): Promise<void> {
    await this.#writing;
    await this.#file?.close().catch(() => undefined);
    this.#file = null;
  }

  async #put(slot: Uint8Array, at: number): Promise<void> {
    try {
      this.#file ??= await inTime(open(this.#path, "r+"));
      await inTime(writeAt(this.#file, slot, at));
    } catch (error) {
      this.#failed(error);
      return;
    }
    this.#file.datasync().catch(this.#failed);
  }
}

function newestIn(bytes: Uint8Array): Slot | null {
  let newest: Slot | null = null;
  for (let at = 0; at < FILE_BYTES; at += SLOT_BYTES) {
    const slot = slotIn(bytes.subarray(at, at + SLOT_BYTES));
    if (slot !== null && slot.count > (newest?.count ?? 0)) newest = slot;
  }
  return newest;
}

/** null: it is too long. */
function slotOf(slot: Slot): Uint8Array | null {
  const payload = new TextEncoder().encode(JSON.stringify(slot));
  const end = FRAME_HEADER_BYTES + payload.byteLength;
  if (end > SLOT_BYTES) return null;
  const bytes = new Uint8Array(SLOT_BYTES);
  bytes.set(payload, FRAME_HEADER_BYTES);
  sealFrame(bytes.subarray(0, end));
  return bytes;
}

/** null: there is none, or a crash has cut it. */
function slotIn(bytes: Uint8Array): Slot | null {
  const scan = scanFrame(bytes, 0);
  if (scan.kind !== "frame") return null;
  const { count, held } = JSON.parse(new TextDecoder().decode(scan.payload)) as Partial<Slot>;
  if (!Number.isInteger(count) || !isHeldWeights(held)) return null;
  return { count: Number(count), held: { ...held, base: baseIn(held.base) } };
}
