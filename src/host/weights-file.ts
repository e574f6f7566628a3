// The current weights, in the folder of the journals. A journal records them late, and not at all on a full disk; this file
// has its space reserved from the start, and is overwritten. So a successor process never goes back to weights that the
// trainer has replaced.

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { join } from "node:path";
import { AppError } from "../core/base/errors.ts";
import { FRAME_HEADER_BYTES, scanFrame, sealFrame } from "../core/journal/frame.ts";
import { baseIn, type HeldWeights, isHeldWeights } from "../core/journal/held-weights.ts";

const NAME = "weights";
const FILE_MODE = 0o600;
/** The file has two slots, written in turn: a crash spoils one at most. Canaries of the largest size take half a slot. */
const SLOT_BYTES = 16_384;
const FILE_BYTES = 2 * SLOT_BYTES;

/** `canaries`: the state of `fleet/agreement.ts`. `isAwake` and `isOpen`: as in `WorkerPool` and `WeightUpdates`. */
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
  /** Opened by the first write. */
  #file: FileHandle | null = null;
  #newest: Slot | null = null;
  /** Resolves when all writes so far have ended. */
  #writing: Promise<void> = Promise.resolve();

  /** Opens or creates the file. @throws AppError invalid_config: it is of another program; Error: I/O failed. */
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

  /** The weights recorded last, by this process or an earlier one; null: none are recorded. */
  get held(): WeightsState | null {
    return this.#newest?.held ?? null;
  }

  /** Resolves when all writes so far have ended or failed, after some seconds at most. */
  write(held: WeightsState): Promise<void> {
    const count = (this.#newest?.count ?? 0) + 1;
    // If it is too long, only the trainer has the weights.
    const short = { ...held, base: "unknown", doubted: held.doubted?.length ? "all" : [] } as const;
    const slot = slotOf({ count, held }) ?? slotOf({ count, held: short });
    if (slot === null) {
      const problem = `the name of the weights has ${held.version.length} characters`;
      this.#failed(new AppError("output_failed", `--journal: ${problem}, too many to be kept`));
      return this.#writing;
    }
    this.#newest = { count, held };
    this.#writing = this.#writing.then(() => this.#put(slot, (count % 2) * SLOT_BYTES));
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

/** The bytes of a slot; null: it is too long. */
function slotOf(slot: Slot): Uint8Array | null {
  const payload = new TextEncoder().encode(JSON.stringify(slot));
  const end = FRAME_HEADER_BYTES + payload.byteLength;
  if (end > SLOT_BYTES) return null;
  const bytes = new Uint8Array(SLOT_BYTES);
  bytes.set(payload, FRAME_HEADER_BYTES);
  sealFrame(bytes.subarray(0, end));
  return bytes;
}

/** Reads a slot; null: it is empty, or a crash has damaged it. */
function slotIn(bytes: Uint8Array): Slot | null {
  const scan = scanFrame(bytes, 0);
  if (scan.kind !== "frame") return null;
  const { count, held } = JSON.parse(new TextDecoder().decode(scan.payload)) as Partial<Slot>;
  if (!Number.isInteger(count) || !isHeldWeights(held)) return null;
  return { count: Number(count), held: { ...held, base: baseIn(held.base) } };
}

/** A write that takes longer counts as failed. */
const DISK_MS_MAX = 10_000;

/** Awaits an operation of a disk that may hang. @throws its own error; Error: it takes too long. */
export async function inTime<T>(operation: Promise<T>): Promise<T> {
  const late = Promise.withResolvers<never>();
  const message = `a write took longer than ${DISK_MS_MAX} ms`;
  const timer = setTimeout(() => late.reject(new Error(message)), DISK_MS_MAX);
  try {
    return await Promise.race([operation, late.promise]);
  } finally {
    clearTimeout(timer);
  }
}

/** Writes all of `bytes`. @throws Error: the disk has not taken all of them. */
export async function writeAt(file: FileHandle, bytes: Uint8Array, at: number): Promise<void> {
  for (let done = 0; done < bytes.byteLength; ) {
    const { bytesWritten } = await file.write(bytes, done, bytes.byteLength - done, at + done);
    if (bytesWritten === 0) throw new Error("the disk takes nothing");
    done += bytesWritten;
  }
}
