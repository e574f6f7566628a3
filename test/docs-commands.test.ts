// Every command, npm script, metric and route that a document names: the command line takes it, with its flags and
// their values; the script is in package.json; the metric and the route are in the references, which the code makes.

import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Glob } from "bun";
import packageJson from "../package.json" with { type: "json" };
import { programOf } from "../src/cli/cli.ts";
import { routeTable } from "../src/compose/features.ts";

const ROOT = join(import.meta.dir, "..");
const PATTERNS = [
  "*.md",
  "docs/*.md",
  "docs/experiments/*.md",
  "deploy/**/*",
  "examples/**/*.md",
  "model/*.md",
];
/** A record of releases: it names commands as they were then. */
const HISTORY = "CHANGELOG.md";
/** Routes of a trainer's own server. */
const FOREIGN_ROUTES = ["POST /api/models"];
/** Documents that name no flag of another program. */
const OWN_FLAGS = /(README|OPERATIONS|PYTHON|STREAM|SIMULATOR|SECURITY)\.md$/;
const files = PATTERNS.flatMap((pattern) => [...new Glob(pattern).scanSync(ROOT)])
  .filter((file) => file !== HISTORY)
  .toSorted();

/** Code of a document: fenced blocks by line, and spans. Other files are code as a whole. */
function codeOf(file: string): string[] {
  const text = readFileSync(join(ROOT, file), "utf8").replaceAll(/\\\n\s*/g, " ");
  if (!file.endsWith(".md")) return text.split("\n");
  const fences = [...text.matchAll(/^```[a-z]*\n(.*?)^```$/gms)].flatMap(([, body = ""]) =>
    body.split("\n"),
  );
  const rest = text.replaceAll(/^```[a-z]*\n.*?^```$/gms, "");
  return [...fences, ...[...rest.matchAll(/`([^`]+)`/g)].map(([, span = ""]) => span)];
}

/** The words of a command up to what ends it in a shell: a comment, a pipe, a redirection, the next command. */
function wordsOf(command: string): string[] {
  const [own = ""] = command.split(/\s(?:#|\||>|&|\d>)|[;)]/);
  return own
    .trim()
    .split(/\s+/)
    .map((word) => word.replaceAll(/^["'[]+|["'\],]+$/g, ""))
    .filter((word) => word !== "" && word !== "..." && word !== "…");
}

/** Placeholders and a shell's variables stand for a number where one is wanted. */
const numberFor = (word: string) => (/^([NGSK]|\$.*)$/.test(word) ? "2" : word);

const commands = new Map(
  (await programOf(() => {})).commands.map((command) => [
    command.name(),
    command.exitOverride().configureOutput({ writeErr: () => {}, writeOut: () => {} }),
  ]),
);

/** Why the command line refuses a command; null: it takes it. */
function problemOf([name = "", ...args]: readonly string[]): string | null {
  const command = commands.get(name);
  if (command === undefined) return `no command ${name}`;
  const end = args.indexOf("--");
  const own = (end < 0 ? args : args.slice(0, end)).map(numberFor);
  const last = own.at(-1) ?? "";
  // A flag that is named alone, as `serve --journal`, is not given its value.
  const isNamedOnly = command.options.some(({ long, required }) => long === last && required);
  try {
    const { unknown } = command.parseOptions(isNamedOnly ? own.slice(0, -1) : own);
    const strange = unknown.filter((word) => word.startsWith("-") && word !== "--help");
    return strange.length === 0 ? null : `no option ${strange.join(" ")}`;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

test("documents: every foretoken command exists, with its flags and values", () => {
  let checked = 0;
  const problems: string[] = [];
  for (const file of files) {
    for (const code of codeOf(file)) {
      for (const [, command = ""] of code.matchAll(
        /(?:^|[\s/(])foretoken ((?!on |import )[a-z].*)/g,
      )) {
        const words = wordsOf(command);
        if (!commands.has(words[0] ?? "") && !/^\s*(\$|npx|foretoken)/.test(code)) continue;
        checked += 1;
        const problem = problemOf(words);
        if (problem !== null) problems.push(`${file}: foretoken ${words.join(" ")}: ${problem}`);
      }
    }
  }
  expect(problems).toEqual([]);
  expect(checked).toBeGreaterThan(50);
});

test("documents: every flag that stands alone is an option of a command", () => {
  const flags = new Set(
    [...commands.values()].flatMap((command) => command.options.map(({ long }) => long)),
  );
  const problems = files
    .filter((file) => OWN_FLAGS.test(file))
    .flatMap((file) =>
      codeOf(file)
        .map((code) => /^--[a-z-]+/.exec(code)?.[0])
        .filter((flag) => flag !== undefined && flag !== "--help" && !flags.has(flag))
        .map((flag) => `${file}: ${flag}`),
    );
  expect(problems).toEqual([]);
});

test("documents: every npm script exists", () => {
  const scripts = new Set(Object.keys(packageJson.scripts));
  const problems = files.flatMap((file) =>
    codeOf(file).flatMap((code) =>
      [...code.matchAll(/npm (?:run (?:--silent )?([a-z:]+)|(test|start))/g)]
        .map(([, run, alone]) => run ?? alone ?? "")
        .filter((name) => !scripts.has(name))
        .map((name) => `${file}: npm run ${name}`),
    ),
  );
  expect(problems).toEqual([]);
});

test("documents: every metric of foretoken is in the reference", () => {
  const reference = readFileSync(join(ROOT, "docs", "reference", "METRICS.md"), "utf8");
  const problems = files.flatMap((file) =>
    codeOf(file)
      .flatMap(
        (code) =>
          code.match(
            /\bforetoken_[a-z_]+_(?:total|seconds|ratio|bytes|tokens|bucket|sum|count)\b/g,
          ) ?? [],
      )
      .filter((name) => !reference.includes(name.replace(/_(bucket|sum|count)$/, "")))
      .map((name) => `${file}: ${name}`),
  );
  expect(problems).toEqual([]);
});

test("documents: every route is one of the server's", () => {
  const known = routeTable().map(
    ({ method, path }) =>
      new RegExp(`^${method} ${path.replaceAll(/\{[^}]+\}|:[a-zA-Z]+/g, "[^/]+")}$`),
  );
  const problems = files.flatMap((file) =>
    codeOf(file)
      .flatMap((code) => code.match(/^(?:GET|POST|PUT|DELETE) \/[^\s?]*/g) ?? [])
      .filter((route) => !FOREIGN_ROUTES.includes(route))
      .filter((route) => !known.some((pattern) => pattern.test(route)))
      .map((route) => `${file}: ${route}`),
  );
  expect(problems).toEqual([]);
});
