// The references in docs/reference, made from the tables in the code: commands, HTTP routes and metrics; and
// docs/llms.txt, the list of all documents. `bun scripts/gen-reference.ts` writes them; test/docs.test.ts holds them.

import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import type { Command, Option } from "commander";
import { programOf } from "../src/cli/cli.ts";
import { routeTable } from "../src/compose/features.ts";
import { FIELDS, type Field } from "../src/config/fields.ts";
import { WAITS } from "../src/core/base/waits.ts";
import { KV_MOVE_FIGURES, POOL_FIGURES, SHOWN_FIGURES } from "../src/core/rollout/figures.ts";
import { Meter } from "../src/core/rollout/meter.ts";
import { EngineTime } from "../src/observe/metrics/effective-time.ts";
import { Metrics } from "../src/observe/metrics/metrics.ts";
import { SERVING_STATES } from "../src/server/live/waiting.ts";

const ROOT = join(import.meta.dir, "..");
const REFERENCE = join(ROOT, "docs", "reference");
const ARCHITECTURE = join(ROOT, "ARCHITECTURE.md");
const MADE = "Made from the code by `bun scripts/gen-reference.ts`; do not edit.";

const cell = (text: string) => text.replaceAll("|", "\\|").replaceAll("\n", " ");

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const lines = [head, head.map(() => "---"), ...rows.map((row) => row.map(cell))];
  return lines.map((line) => `| ${line.join(" | ")} |`).join("\n");
}

/** ARCHITECTURE.md with its table of waits as the code has it. */
function waits(): string {
  const rows = Object.values(WAITS).map(({ heldIn, enteredBy, endedBy, seconds, atBound }) => {
    return [heldIn, enteredBy, endedBy, seconds === null ? atBound : `${seconds} s: ${atBound}`];
  });
  const text = table(["held in", "entered by", "ended by", "bound"], rows);
  return readFileSync(ARCHITECTURE, "utf8").replace(
    /(?<=^## Where a request waits\n.*?\n\n)\|.*?(?=\n\n)/ms,
    () => text,
  );
}

/** By path: what each file should hold. */
export async function referenceFiles(): Promise<Map<string, string>> {
  return new Map([
    [join(REFERENCE, "CLI.md"), await commands()],
    [join(REFERENCE, "HTTP.md"), routes()],
    [join(REFERENCE, "METRICS.md"), await metrics()],
    [join(ROOT, "docs", "llms.txt"), index()],
    [ARCHITECTURE, waits()],
  ]);
}

/** Paths of files that are missing or hold something else. */
export async function staleReferences(): Promise<string[]> {
  const stale: string[] = [];
  for (const [path, text] of await referenceFiles()) {
    if (!existsSync(path) || readFileSync(path, "utf8") !== text) stale.push(relative(ROOT, path));
  }
  return stale;
}

async function commands(): Promise<string> {
  const all = (await programOf(() => {})).commands;
  const rows = new Map<string, string>();
  // An option of `serve` is described there; other commands name it alone where it means the same.
  for (const one of all.toSorted(
    (a, b) => Number(b.name() === "serve") - Number(a.name() === "serve"),
  )) {
    for (const option of shownOf(one))
      rows.set(meaning(option), rows.get(meaning(option)) ?? one.name());
  }
  const parts = all.map((one) => command(one, rows));
  return `# Commands\n\n${MADE}\n\nOptions can be set in the environment too: \`--kv-tokens\` is \`FORETOKEN_KV_TOKENS\`; those of \`serve\` also in a file (\`--config\`, TOML or JSON: \`kv_tokens\`). A flag comes before the environment, and that before the file.\n\n${parts.join("\n\n")}\n`;
}

const meaning = ({ flags, description }: Option) => `${flags} ${description}`;

const shownOf = ({ options }: Command) => options.filter(({ hidden }) => !hidden);

/** A command, whose options are named alone where another one of `describedAt` has them. */
function command(one: Command, describedAt: ReadonlyMap<string, string>): string {
  const taken = one.registeredArguments.map((argument) => {
    const name = `${argument.name()}${argument.variadic ? "..." : ""}`;
    return argument.required ? `<${name}>` : `[${name}]`;
  });
  const usage = ["foretoken", one.name(), "[options]", ...taken].join(" ");
  const at = Map.groupBy(shownOf(one), (option) => describedAt.get(meaning(option)) ?? one.name());
  const own = (at.get(one.name()) ?? []).map(({ flags, long, description }) => [
    `\`${flags}\``,
    `${description}${BOUNDS.get(long ?? "") ?? ""}`,
  ]);
  at.delete(one.name());
  const same = [...at].map(([name, options]) => {
    const flags = options.map((option) => `\`${option.flags}\``).join(", ");
    return `As in [\`${name}\`](#${name}): ${flags}.`;
  });
  const parts = [`## ${one.name()}`, one.description(), `\`${usage}\``, ...same];
  if (own.length > 0) parts.push(table(["option", "meaning"], own));
  return parts.join("\n\n");
}

/** By flag: the bounds of a number. */
const BOUNDS = new Map(
  Object.values<Field>(FIELDS).flatMap((field) =>
    field.kind === "integer" || field.kind === "number"
      ? [[field.flag, `; ${field.range[0]} to ${field.range[1]}`] as const]
      : [],
  ),
);

function routes(): string {
  const all = routeTable().toSorted(
    (a, b) => a.path.localeCompare(b.path) || a.method.localeCompare(b.method),
  );
  const open = all.filter(({ right = "token" }) => right !== "token");
  const whatOf = ({ summary, query = {}, streams }: (typeof all)[number]) => {
    const names = Object.keys(query).map((name) => `\`${name}\``);
    const notes = [
      streams ? ["may stream"] : [],
      names.length > 0 ? [`query: ${names.join(", ")}`] : [],
    ];
    const note = notes.flat().join("; ");
    return note === "" ? summary : `${summary} (${note})`;
  };
  const rows = [...Map.groupBy(all, whatOf)].map(([what, alike]) => [
    alike.map(({ method, path }) => `\`${method} ${path}\``).join(", "),
    what,
  ]);
  return `# HTTP routes

${MADE}

The schemas of bodies are in \`GET /openapi.json\` of a running server. \`/v1/stream\` is a WebSocket
([STREAM.md](../STREAM.md)), and so is \`/v1/draft\` ([PROTOCOL.md](../PROTOCOL.md)).

Where \`--api-token\` is set, both sockets and all routes need it ([SECURITY.md](../../SECURITY.md)), except
${open.map(({ method, path }) => `\`${method} ${path}\``).join(", ")}.

${table(["route", "what"], rows)}
`;
}

async function metrics(): Promise<string> {
  const none = () => 0;
  const source = {
    modelName: "m",
    meter: new Meter({ nowMs: none }),
    drift: { engines: new Map() },
    unfinished: none,
    epoch: none,
    engineName: String,
    paces: () => ({ of: () => 1, error: 0 }),
    servingState: () => "serving",
    servingStates: SERVING_STATES,
    staleWorkers: none,
    sessions: () => ({ turns: 0, promptTokens: 0, cachedTokens: 0, edited: 0 }),
    engineTime: () => new EngineTime(),
    workerStates: () => ({}),
    kvPool: () => ({
      ...{ memoryBytes: 0, diskBytes: 0, puts: 0, hits: 0, misses: 0, corrupt: 0 },
      ...{ evictions: 0, diskErrors: 0 },
    }),
    stream: () => ({ clients: 0, framesSent: 0, bytesSent: 0, closed: {} }),
    plugins: () => [],
    kept: () => [],
  };
  const text = await new Metrics(source).text();
  const keyOf = new Map(
    [
      ...SHOWN_FIGURES,
      ...KV_MOVE_FIGURES.map((row) => ({ ...row, key: `kv_moves.${row.key}` })),
      ...POOL_FIGURES.map((row) => ({ ...row, key: `kv_pool.${row.key}` })),
    ].map(({ metric, key }) => [metric, `\`${key}\``]),
  );
  const helps = [...text.matchAll(/^# HELP (\S+) (.*)\n# TYPE \S+ (\S+)$/gm)];
  const isAsInVllm = (name: string) => name.startsWith("vllm:") && !keyOf.has(name);
  const asInVllm = helps.flatMap(([, name = ""]) => (isAsInVllm(name) ? [`\`${name}\``] : []));
  const rows = helps
    .filter(([, name = ""]) => !name.startsWith("process_") && !isAsInVllm(name))
    .map(([, name = "", help = "", type = ""]) => {
      const key = keyOf.get(name);
      return [`\`${name}\``, type, key === undefined ? help : `${help} (${key})`];
    });
  return `# Metrics

${MADE}

\`GET /metrics\` in Prometheus' format. Names with \`vllm:\` mean what they mean in vLLM, so that its Grafana dashboard finds data; the label
\`engine\` is the worker's URL or name. \`process_*\` are those of every Prometheus client.

Times of requests are counted when a request has finished. As in vLLM: ${asInVllm.toSorted().join(", ")}.

${table(
  ["name", "type", "meaning (key in reports and on the page)"],
  rows.toSorted((a, b) => String(a[0]).localeCompare(String(b[0]))),
)}
`;
}

/** https://llmstxt.org: the project in one paragraph, and its documents with a line each. */
function index(): string {
  const entry = (path: string) => {
    const [title = "", opening = ""] = readFileSync(join(ROOT, path), "utf8").split("\n\n");
    const plain = opening.replaceAll("\n", " ").replace(/\[([^\]]*)\]\([^)]*\)/g, "$1");
    const [sentence = plain] = /^.*?\.(?= [A-Z]|$)/.exec(plain) ?? [];
    return `- [${title.replace(/^#+ /, "")}](${relative("docs", path)}): ${sentence}`;
  };
  const guides = readdirSync(join(ROOT, "docs"))
    .filter((name) => name.endsWith(".md") && name !== "README.md")
    .toSorted()
    .map((name) => entry(`docs/${name}`));
  const references = ["CLI", "HTTP", "METRICS"].map(
    (name) => `- [${name.toLowerCase()}](reference/${name}.md)`,
  );
  return `# Foretoken

> A proxy between an RL trainer and its vLLM servers that shortens the rollout phase without changing what the model samples.

## Guides

- [Introduction](../README.md)
- [Architecture](../ARCHITECTURE.md)
${guides.join("\n")}

## Reference

${references.join("\n")}
`;
}

if (import.meta.main) {
  const stale = await staleReferences();
  for (const [path, text] of await referenceFiles()) {
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, text);
  }
  console.log(stale.length === 0 ? "all references are current" : `written: ${stale.join(", ")}`);
}
