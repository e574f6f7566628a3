// Output of commands: files that an option names, JSON, and tables of text.

import { randomUUID } from "node:crypto";
import {
  closeSync,
  copyFileSync,
  existsSync,
  fchmodSync,
  fchownSync,
  fstatSync,
  fsyncSync,
  ftruncateSync,
  lstatSync,
  mkdirSync,
  openSync,
  readlinkSync,
  realpathSync,
  renameSync,
  rmSync,
  type Stats,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { AppError, errorText } from "../core/base/errors.ts";
import { codeOf } from "../host/system.ts";
import { pagePath } from "../observe/picture/page.ts";
import { paint } from "./terminal.ts";

/**
 * The file that an option names. Until `finish` it is written beside its place, as PATH.PID.part, so what was there
 * before stays, however the command ends. A pipe or a device is written in place. A file that cannot be replaced, because
 * it is mounted or its folder is read-only, gets a copy of the part.
 */
export class OutputFile {
  readonly #what: string;
  readonly #place: string;
  #part: string;
  /** Status of the file that exists at the path; undefined: none. */
  readonly #found: Stats | undefined;
  #file: number | null = null;
  #isWhole = false;
  /** Length of the file up to the end of the last piece. */
  #bytes = 0;

  /** Creates the folders, and changes no file. @throws AppError output_failed: the file cannot be written. */
  constructor(flag: string, path: string) {
    this.#what = `${flag} ${path}`;
    try {
      mkdirSync(dirname(path), { recursive: true });
      const found = statSync(path, { throwIfNoEntry: false });
      // A descriptor's name may lead to a file, which other output goes to as well.
      const isPlain = (found?.isFile() || found?.isDirectory()) && !/^\/(dev|proc)\//.test(path);
      this.#place = isPlain ? realpathSync(path) : found ? path : endOf(path);
      this.#part = isPlain || !found ? freePart(this.#place) : path;
      this.#found = found;
      if (this.isStream) return;
      mkdirSync(dirname(this.#place), { recursive: true });
      if (isPlain) closeSync(openSync(path, "a"));
      this.#tryPart(isPlain === true);
    } catch (error) {
      throw this.#failure(error);
    }
  }

  get isEmpty(): boolean {
    return this.#bytes === 0;
  }

  /** Whether the output is a pipe or a device. */
  get isStream(): boolean {
    return this.#part === this.#place;
  }

  /** Path of a part that was finished but never moved to its place; null: there is none. */
  get left(): string | null {
    return this.isEmpty || this.isStream || this.#isWhole ? null : this.#part;
  }

  /** Appends a piece, which is in the part on return. On failure the pieces before it stay. @throws AppError output_failed. */
  append(piece: string): void {
    try {
      this.#file ??= this.#open();
      writeFileSync(this.#file, piece);
    } catch (error) {
      this.#takeBack();
      throw this.#failure(error);
    }
    this.#bytes += Buffer.byteLength(piece);
  }

  /** Moves the file to its place, durably. Call it once. @throws AppError output_failed: the pieces stay in the part. */
  finish(): void {
    try {
      const file = this.#file ?? this.#open();
      syncIfPossible(file);
      closeSync(file);
      if (!this.isStream) this.#takePlace();
      this.#isWhole = true;
    } catch (error) {
      throw this.#failure(error);
    }
  }

  /** Writes the whole file at once. @throws AppError output_failed. */
  write(text: string): void {
    this.append(text.endsWith("\n") ? text : `${text}\n`);
    this.finish();
  }

  /** Opens the part. Beside an existing file that may be impossible: its folder is read-only, the file is not. */
  #tryPart(isThere: boolean): void {
    try {
      closeSync(this.#open());
    } catch (error) {
      if (!isThere || !IS_CLOSED.has(codeOf(error))) throw error;
      // Others may write there too: a name that nobody can foretell leads to no file of theirs.
      this.#part = join(tmpdir(), `${basename(this.#place)}.${randomUUID()}.part`);
      closeSync(this.#open());
    }
    rmSync(this.#part);
  }

  #open(): number {
    const file = openSync(this.#part, "a", this.#found?.mode);
    if (this.#found !== undefined && !this.isStream) ownAs(file, this.#found);
    return file;
  }

  #takePlace(): void {
    try {
      renameSync(this.#part, this.#place);
    } catch (error) {
      if (!IS_CLOSED.has(codeOf(error)) && !IS_MOUNTED.has(codeOf(error))) throw error;
      copyOver(this.#part, this.#place);
      rmSync(this.#part);
    }
  }

  #takeBack(): void {
    try {
      if (this.#file !== null) ftruncateSync(this.#file, this.#bytes);
      if (this.isEmpty && !this.isStream) rmSync(this.#part, { force: true });
    } catch {
      // A pipe or a device cannot be cut; the error that brought us here is the one to tell.
    }
  }

  #failure(cause: unknown): AppError {
    return new AppError("output_failed", `${this.#what}: ${errorText(cause)}`, { cause });
  }
}

const IS_CLOSED: ReadonlySet<string> = new Set(["EACCES", "EPERM", "EROFS"]);
const IS_MOUNTED: ReadonlySet<string> = new Set(["EBUSY", "EXDEV"]);

/** Gives the file the owner and the mode of another, as far as this user may. */
function ownAs(file: number, { uid, gid, mode }: Stats): void {
  const may = (act: () => void): boolean => {
    try {
      act();
      return true;
    } catch {
      return false;
    }
  };
  // Who may not give files away may still keep the group.
  if (!may(() => fchownSync(file, uid, gid))) {
    may(() => fchownSync(file, fstatSync(file).uid, gid));
  }
  may(() => fchmodSync(file, mode & 0o7777));
}

/** Copies a file's content over another file; durable on return. */
function copyOver(from: string, to: string): void {
  copyFileSync(from, to);
  const target = openSync(to, "a");
  try {
    fsyncSync(target);
  } finally {
    closeSync(target);
  }
}

/** The file that a path leads to through links, even if the file does not exist yet. */
function endOf(path: string): string {
  let place = path;
  while (lstatSync(place, { throwIfNoEntry: false })?.isSymbolicLink()) {
    place = resolve(realpathSync(dirname(place)), readlinkSync(place));
  }
  return place;
}

/** A free path for the part. In a container each process may have the number of the one before, which left its part. */
function freePart(place: string): string {
  for (let n = 1; ; n += 1) {
    const part = `${place}.${process.pid}${n === 1 ? "" : `-${n}`}.part`;
    if (!existsSync(part)) return part;
  }
}

/**
 * Returns a function that opens an output of a command, before its work; a path of null is none. `inputs` may be absent.
 * @throws AppError usage: one is an input, or another output; output_failed.
 */
export function outputsOf(inputs: readonly string[]) {
  const taken = new Map(inputs.map((path) => [identityOf(path), "the command reads it"]));
  return (flag: string, path: string | null): OutputFile | null => {
    if (path === null) return null;
    const file = new OutputFile(flag, path);
    const identity = identityOf(path);
    const use = identity === null ? undefined : taken.get(identity);
    if (use !== undefined) throw new AppError("usage", `${flag} ${path}: ${use}; name another`);
    taken.set(identity, `${flag} writes it too`);
    return file;
  };
}

/** Opens the file of --report, and the page beside it; a stream has no page. @throws as outputsOf. */
export function reportFiles(open: ReturnType<typeof outputsOf>, path: string | null) {
  const report = open("--report", path);
  const page = path === null || report?.isStream ? null : open("--report", pagePath(path));
  return { report, page };
}

/** Identity of a file, equal for all of its names; null: a pipe or device. */
function identityOf(path: string): string | null {
  const found = statSync(path, { throwIfNoEntry: false });
  if (found === undefined) return resolve(endOf(path));
  return found.isFile() ? `${found.dev} ${found.ino}` : null;
}

function syncIfPossible(file: number): void {
  try {
    fsyncSync(file);
  } catch (error) {
    // Pipes and devices such as /dev/stdout have nothing to make durable.
    const code = codeOf(error);
    if (code !== "EINVAL" && code !== "ENOTSUP" && code !== "EROFS") throw error;
  }
}

export function jsonOf(value: unknown): string {
  return JSON.stringify(value, null, 2);
}

/** A table with rules between head, rows and end; the first `left` columns hold text, the others numbers. No final line end. */
export function textTable(
  head: readonly string[],
  rows: readonly (readonly string[])[],
  left = 1,
): string {
  const all = [head.map((name) => paint(name, "bold")), ...rows];
  const widths = head.map((_, i) => Math.max(...all.map((row) => Bun.stringWidth(row[i] ?? ""))));
  const lines = all.map((row) => {
    const cells = widths.map((width, i) => {
      const [cell = "", room] = [row[i], " ".repeat(width - Bun.stringWidth(row[i] ?? ""))];
      return i < left ? cell + room : room + cell;
    });
    return cells.join("  ").trimEnd();
  });
  const rule = "─".repeat(Math.max(...lines.map((line) => Bun.stringWidth(line))));
  const [top = "", ...body] = lines;
  return [rule, top, rule, ...body, ...(body.length > 0 ? [rule] : [])].join("\n");
}

/** A column of a table: its title, and what it shows of the item in a row. */
export type Column<T> = readonly [title: string, cell: (item: T) => string];

/** A text table with a row for each item; the first `left` columns hold text. */
export function tableOf<T>(items: readonly T[], columns: readonly Column<T>[], left = 1): string {
  const head = columns.map(([title]) => title);
  const rows = items.map((item) => columns.map(([, cell]) => cell(item)));
  return textTable(head, rows, left);
}

export const EXIT_FAILED = 1;
export const EXIT_USAGE = 2;
/** Exit status after an interrupt: 128 + SIGINT, as shells report it. */
export const EXIT_INTERRUPTED = 130;
