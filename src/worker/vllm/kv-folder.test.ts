import { afterEach, expect, test } from "bun:test";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { StandInConnector } from "../../../test/stand-in/connector.ts";
import { KvFolder, storedName } from "./kv-folder.ts";

const BLOCK = 4;
const roots: string[] = [];
afterEach(() => {
  for (const root of roots.splice(0)) rmSync(root, { recursive: true, force: true });
});

function newRoot(): string {
  const root = mkdtempSync(join(tmpdir(), "foretoken-kv-folder-"));
  roots.push(root);
  return root;
}

const TEXT = Int32Array.from({ length: 11 }, (_, i) => 100 + i);

/** A server that has stored TEXT: two blocks of it. */
function stored(root: string): { folder: KvFolder; server: StandInConnector; name: string } {
  const server = new StandInConnector(root, BLOCK);
  server.scheduled([...TEXT], 0);
  return { folder: new KvFolder(root), server, name: storedName(TEXT, 8) };
}

test("storedName: is that of vLLM 0.32 (seen on a live server)", () => {
  expect(storedName(new Int32Array(0), 0)).toBe("d41d8cd98f00b204e9800998ecf8427e");
  // hashlib.md5(torch.tensor([1, 2, 3]).numpy().tobytes()).hexdigest()
  expect(storedName(Int32Array.of(1, 2, 3, 9), 3)).toBe("aa341a15f5ade44faafbe190f98c2587");
});

test("take: what a server stored is ours, whole, and not found any more", () => {
  const { folder, server, name } = stored(newRoot());
  expect(folder.isShown(name)).toBe(true);
  const kv = folder.take(name, 8);
  if (kv === null) throw new Error("it was stored");
  expect(folder.isWhole(kv)).toBe(true);
  expect(kv.bytes).toBeGreaterThan(0);
  expect(server.matched([...TEXT], 0)).toBe(0);
  expect(folder.take(name, 8)).toBe(null);
});

test("show: another server finds it, until it is hidden", () => {
  const kv = stored(newRoot()).folder.take(storedName(TEXT, 8), 8);
  if (kv === null) throw new Error("it was stored");
  const root = newRoot();
  const folder = new KvFolder(root);
  const server = new StandInConnector(root, BLOCK);
  expect(folder.show(kv)).toBe(true);
  expect(server.matched([...TEXT], 0)).toBe(8);
  server.scheduled([...TEXT], 8);
  expect(server.hitTokens).toBe(8);
  folder.hide(kv.name);
  expect(server.matched([...TEXT], 0)).toBe(0);
  expect(existsSync(kv.path)).toBe(true);
});

test("take: a layer too few, and fewer tokens than the name says, are not whole", () => {
  const root = newRoot();
  const { folder, server, name } = stored(root);
  const first = folder.take(name, 8);
  if (first === null) throw new Error("it was stored");
  server.scheduled([...TEXT], 0);
  const second = folder.take(name, 8);
  if (second === null) throw new Error("it was stored");
  rmSync(join(second.path, readdirSync(second.path)[0] ?? ""));
  expect(folder.isWhole(second)).toBe(false);
  expect(folder.isWhole({ ...first, tokens: 12 })).toBe(false);
  expect(folder.isWhole({ ...first, path: join(root, "nowhere") })).toBe(false);
});

test("show: what is gone from the disk is not shown", () => {
  const { folder, name } = stored(newRoot());
  const kv = folder.take(name, 8);
  if (kv === null) throw new Error("it was stored");
  rmSync(kv.path, { recursive: true });
  expect(folder.show(kv)).toBe(false);
  expect(folder.isShown(name)).toBe(false);
});

test("clear: takes away what the connector stored and was shown, and nothing else", () => {
  const root = newRoot();
  const { folder, server, name } = stored(root);
  const kv = folder.take(name, 8);
  if (kv === null) throw new Error("it was stored");
  folder.show(kv);
  server.scheduled([...TEXT.subarray(0, 3)], 0);
  writeFileSync(join(root, "a user's file"), "");
  mkdirSync(join(root, "a user's folder"));
  expect(folder.clear()).toBe(null);
  const left = readdirSync(root).filter((one) => one !== ".foretoken");
  expect(left.sort()).toEqual(["a user's file", "a user's folder"]);
});

test("clear: a folder that is not there is empty", () => {
  expect(new KvFolder(join(newRoot(), "none")).clear()).toBe(null);
});
