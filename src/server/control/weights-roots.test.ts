// Paths in control calls, whatever their route and field: inside of the roots, or refused by name.

import { expect, test } from "bun:test";
import { linkSync, mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../../../test/suite/temporary-folder.ts";
import { AppError } from "../../core/base/errors.ts";
import { type Exchange, jsonResponse, type Route } from "../route.ts";
import { confined, openRoots } from "./weights-roots.ts";

const folder = temporaryFolder("roots");
const root = join(folder, "root");
const other = join(folder, "other");
for (const path of [root, other, join(root, "good"), join(root, "links"), `${root}-more`]) {
  mkdirSync(path);
}
writeFileSync(join(root, "good", "model.safetensors"), "");
writeFileSync(join(other, "secret"), "");
symlinkSync(other, join(root, "out"));
symlinkSync(join(root, "good"), join(root, "in"));
symlinkSync(join(folder, "nowhere"), join(root, "dangling"));
symlinkSync(join(other, "secret"), join(root, "links", "model.safetensors"));
symlinkSync(root, join(folder, "alias"));
// A link below the first level, one behind a link to a folder inside, and folders that hold one another.
for (const path of ["deep", "deep/a", "deep/a/b", "behind", "round", "round/a"])
  mkdirSync(join(root, path));
symlinkSync(join(other, "secret"), join(root, "deep", "a", "b", "model.safetensors"));
symlinkSync(join(root, "deep"), join(root, "behind", "deep"));
symlinkSync(join(root, "round"), join(root, "round", "a", "again"));
// As Hugging Face's cache lays out a model: files are links to blobs.
const hub = join(root, "hub", "models--org--name");
const snapshot = join(hub, "snapshots", "0123abc");
for (const path of [join(hub, "blobs"), join(snapshot, "sub")])
  mkdirSync(path, { recursive: true });
writeFileSync(join(hub, "blobs", "cafe"), "");
symlinkSync("../../blobs/cafe", join(snapshot, "model.safetensors"));
symlinkSync("../../../blobs/cafe", join(snapshot, "sub", "config.json"));

let called = 0;
const route: Route = {
  method: "POST",
  path: "/update_weights",
  summary: "",
  handle: () => {
    called += 1;
    return jsonResponse({});
  },
};

async function asked(body: unknown, roots: readonly string[], query = ""): Promise<string | null> {
  const [inside] = confined([route], await openRoots(roots));
  const url = new URL(`http://localhost/update_weights${query}`);
  const exchange = { url, json: async () => body } as unknown as Exchange;
  const before = called;
  try {
    await inside?.handle(exchange);
    expect(called).toBe(before + 1);
    return null;
  } catch (error) {
    expect(called).toBe(before);
    if (!(error instanceof AppError)) throw error;
    expect(error.code).toBe("invalid_field");
    return error.message;
  }
}

test.each([
  { weight_dir: join(root, "good") },
  { update_info: { weights_path: join(root, "good", "model.safetensors") } },
  { lora_path: join(root, "in") },
  { lora_path: join(folder, "alias", "good") },
  { lora_path: join(root, "not", "here", "yet") },
  { model_path: `file://${join(root, "good")}` },
  { weight_dir: snapshot },
  { weight_dir: join(snapshot, "sub", "config.json") },
  { lora_path: join(root, "round") },
  { method: "reload_weights", args: ["a", 1], kwargs: {} },
  { names: ["model.layers.0.weight"], shapes: [[1, 2]], init_info: { master_address: "10.0.0.1" } },
  null,
])("weights root: %j is inside", async (body) => {
  expect(await asked(body, [root])).toBeNull();
});

test.each([
  { weight_dir: other },
  { weight_dir: `${root}-more` },
  { weight_dir: folder },
  { update_info: { weights_path: join(root, "out") } },
  { update_info: { weights_path: join(root, "out", "secret") } },
  { lora_path: `${root}/good/../../other` },
  { lora_path: `${root}/in/../../other` },
  { lora_path: join(root, "links") },
  { lora_path: join(root, "deep") },
  { lora_path: join(root, "deep", "a") },
  { lora_path: join(root, "behind") },
  { lora_path: join(root, "dangling") },
  { lora_path: "org/adapter" },
  { lora_path: "hf://org/adapter" },
  { model_path: `file://${other}` },
  { model_path: "s3://bucket/model" },
  { model_path: "~/model" },
  { model_path: `${root}/good\0/../../other` },
  { method: "reload_weights", args: ["/etc/passwd"] },
  { method: "reload_weights", kwargs: { deep: [{ er: other }] } },
  { anything: "../../etc/passwd" },
])("weights root: %j is refused, and nothing is done", async (body) => {
  const message = await asked(body, [root]);
  expect(message).toMatch(/--weights-root|leads nowhere/);
});

test("weights root: the error names field, path and roots", async () => {
  expect(await asked({ lora_path: "/etc/passwd" }, [root, other])).toBe(
    `request: lora_path is "/etc/passwd", outside of the folders of --weights-root: they are ${root}, ${other}`,
  );
  expect(await asked({ weight_dir: "/w" }, [])).toContain("none is given");
});

test("weights root: a path in the query is a path", async () => {
  expect(await asked(null, [root], "?model_path=/etc")).toContain('model_path is "/etc"');
});

test("weights root: a long body is not walked without end", async () => {
  const values = new Array<string>(200_000).fill("a");
  expect(await asked({ values }, [root])).toContain("more than 100000 values");
  expect(await asked({ values: new Array<number>(200_000).fill(1) }, [root])).toBeNull();
});

test("weights root: blobs outside of the root are outside", async () => {
  expect(await asked({ weight_dir: snapshot }, [join(hub, "snapshots")])).toContain("blobs/cafe");
});

test("weights root: a folder is not walked without end", async () => {
  const large = join(root, "large");
  for (let i = 0; i < 10; i += 1) {
    mkdirSync(join(large, `${i}`), { recursive: true });
    for (let j = 0; j < 1001; j += 1)
      linkSync(join(root, "good", "model.safetensors"), join(large, `${i}`, `${j}`));
  }
  expect(await asked({ weight_dir: large }, [root])).toContain("a folder of more than 10000 files");
  expect(await asked({ weight_dir: join(large, "1") }, [root])).toBeNull();
});

test("weights root: without any, every path is passed on", async () => {
  const [free] = confined([route], null);
  const url = new URL("http://localhost/update_weights");
  await free?.handle({ url, json: async () => ({ weight_dir: "/etc" }) } as unknown as Exchange);
});
