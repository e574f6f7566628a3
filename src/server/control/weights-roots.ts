// Confines the paths in control calls to configured folders: engines load weights and adapters from there and from
// nowhere else. It looks at the call, whatever its route does with it, so that a new route is confined as well.

import { lstat, readdir, realpath } from "node:fs/promises";
import { basename, dirname, join, resolve, sep } from "node:path";
import { AppError, errorText, type InvalidFieldError } from "../../core/base/errors.ts";
import { isLoopbackHost } from "../access.ts";
import { type Exchange, invalid, type Route } from "../route.ts";

/** null: paths are not confined. Empty: none is allowed. */
export type WeightsRoots = readonly string[] | null;

/** Time for which one call waits for a file system that does not answer. */
const RESOLVE_MS_MAX = 10_000;
/** Names of fields that hold a path of weights in the engines' own protocols. */
const PATH_FIELD = /(?:^|_)(?:path|dir|directory|folder|file|checkpoint|uri)$/i;
/** A path in any field: it begins like a path, climbs, or ends like a file of weights. Base64 does none of these. */
const PATH_VALUE =
  /^(?:[/~\\]|\.{1,2}(?:[/\\]|$)|file:|[a-z]:[/\\])|(?:^|[/\\])\.\.(?:[/\\]|$)|\.(?:gguf|safetensors|bin|pth?)$/i;
const FILE_SCHEME = /^file:\/\//i;
const SCHEME = /^[a-z][a-z0-9+.-]*:/i;
const WALK_VALUES_MAX = 100_000;
const SHOWN_MAX = 200;
/** Limit of checked entries, which take well below a second: a folder of weights has some thousand. */
const ENTRIES_MAX = 10_000;

/** Callers on loopback can read this machine's files anyway; for others, only the operator's folders are allowed. */
export async function rootsFor(host: string, folders: readonly string[]): Promise<WeightsRoots> {
  return folders.length === 0 && isLoopbackHost(host) ? null : await openRoots(folders);
}

/** Real paths of the folders. @throws AppError invalid_config: one cannot be resolved. */
export async function openRoots(folders: readonly string[]): Promise<string[]> {
  const found: string[] = [];
  for (const folder of folders) {
    try {
      found.push(await realPathOf(resolve(folder)));
    } catch (cause) {
      const problem = `--weights-root ${folder} cannot be used: ${errorText(cause)}`;
      throw new AppError("invalid_config", problem, { cause });
    }
  }
  return found;
}

/** The routes, which then refuse bodies and queries that name a path outside of `roots`. */
export function confined(routes: readonly Route[], roots: WeightsRoots): Route[] {
  if (roots === null) return [...routes];
  return routes.map((route) => ({
    ...route,
    handle: async (exchange) => {
      for (const [name, value] of exchange.url.searchParams) {
        await checkPath(name, value, roots);
      }
      if (route.method === "POST") await checkBody(await bodyOf(exchange), roots);
      return await route.handle(exchange);
    },
  }));
}

/** The body; null if it is not JSON: it names no path then, and the route itself refuses it if need be. */
async function bodyOf(exchange: Exchange): Promise<unknown> {
  try {
    return await exchange.json();
  } catch (error) {
    if (error instanceof AppError && error.code === "invalid_json") return null;
    throw error;
  }
}

async function checkBody(body: unknown, roots: readonly string[]): Promise<void> {
  let left = WALK_VALUES_MAX;
  for (const [field, value] of valuesIn("body", body)) {
    left -= 1;
    if (left < 0) throw invalid(field, `is one of more than ${WALK_VALUES_MAX} values`);
    if (typeof value === "string") await checkPath(field, value, roots);
  }
}

/** Every value in a body with its field's name. Numbers in lists are left out: there are many, and they name no path. */
function* valuesIn(field: string, value: unknown): Generator<[field: string, value: unknown]> {
  yield [field, value];
  if (typeof value !== "object" || value === null || ArrayBuffer.isView(value)) return;
  const isList = Array.isArray(value);
  for (const [name, item] of isList ? value.entries() : Object.entries(value)) {
    if (!isList || typeof item !== "number") yield* valuesIn(isList ? field : `${name}`, item);
  }
}

/** @throws InvalidFieldError: the path is outside of the roots. */
async function checkPath(field: string, value: string, roots: readonly string[]): Promise<void> {
  const isNamed = PATH_FIELD.test(field);
  if (!isNamed && !PATH_VALUE.test(value)) return;
  const path = value.replace(FILE_SCHEME, "");
  const allowed = roots.length === 0 ? "none is given" : `they are ${roots.join(", ")}`;
  const outside = (what: string): InvalidFieldError =>
    invalid(field, `is ${what}, outside of the folders of --weights-root: ${allowed}`);
  if (SCHEME.test(path) || path.includes("\0") || path.startsWith("~")) throw outside(shown(value));
  // Behind a symbolic link it leads elsewhere than the text says.
  if (path.split(/[/\\]/).includes("..")) throw outside(`${shown(value)}, which holds ..`);
  const isAllowed = (real: string) =>
    roots.some((root) => real === root || real.startsWith(root.endsWith(sep) ? root : root + sep));
  const real = await inTime(realPathOf(resolve(path)), field);
  if (!isAllowed(real)) {
    throw outside(real === path ? shown(value) : `${shown(value)}, which is ${shown(real)}`);
  }
  const found = await inTime(linkOutside(real, isAllowed), field);
  if (found === "too many entries") {
    throw invalid(field, `is ${shown(value)}, a folder of more than ${ENTRIES_MAX} files`);
  }
  if (found !== null) throw outside(`${shown(value)}, with a link to ${shown(found.to)} in it`);
}

/** Resolves symbolic links as far as the path exists here: the rest may exist where the engine runs. */
async function realPathOf(path: string): Promise<string> {
  try {
    return await realpath(path);
  } catch (error) {
    const code: unknown = Reflect.get(Object(error), "code");
    if (code !== "ENOENT" && code !== "ENOTDIR") throw error;
    const stat = await lstat(path).catch(() => null);
    if (stat?.isSymbolicLink()) throw new Error(`${path} is a symbolic link that leads nowhere`);
    const folder = dirname(path);
    return folder === path ? path : join(await realPathOf(folder), basename(path));
  }
}

/** A link that leads outside, in the folder or below it or behind a link; null: there is none, or `path` is no folder here. */
async function linkOutside(
  path: string,
  isAllowed: (real: string) => boolean,
): Promise<{ readonly to: string } | "too many entries" | null> {
  let left = ENTRIES_MAX;
  const folders = new Set([path]);
  // Folders that are found on the way are walked as well.
  for (const folder of folders) {
    const entries = await readdir(folder, { withFileTypes: true }).catch(() => []);
    left -= entries.length;
    if (left < 0) return "too many entries";
    for (const entry of entries) {
      const at = join(folder, entry.name);
      if (entry.isDirectory()) folders.add(at);
      if (!entry.isSymbolicLink()) continue;
      const to = await realPathOf(at);
      if (!isAllowed(to)) return { to };
      const target = await lstat(to).catch(() => null);
      if (target?.isDirectory()) folders.add(to);
    }
  }
  return null;
}

async function inTime<T>(work: Promise<T>, field: string): Promise<T> {
  const late = Promise.withResolvers<never>();
  const timer = setTimeout(() => {
    late.reject(invalid(field, "is on a file system that does not answer"));
  }, RESOLVE_MS_MAX);
  try {
    return await Promise.race([work, late.promise]);
  } catch (error) {
    if (error instanceof AppError) throw error;
    throw invalid(field, `cannot be resolved: ${errorText(error)}`);
  } finally {
    clearTimeout(timer);
  }
}

function shown(value: string): string {
  return JSON.stringify(value.length <= SHOWN_MAX ? value : `${value.slice(0, SHOWN_MAX)}...`);
}
