// The GPUs of each server: as many as its engine's processes take, and none twice.

import { AppError } from "../../core/base/errors.ts";

/** Flags whose values multiply to the GPUs of one server. vLLM takes _ for - in them. */
const SIZES: readonly (readonly string[])[] = [
  ["--tensor-parallel-size", "-tp"],
  ["--pipeline-parallel-size", "-pp"],
  ["--prefill-context-parallel-size", "-pcp"],
];
/** Flags of data parallelism; the second one gives the number of ranks on this machine. */
const DATA_SIZES: readonly (readonly string[])[] = [
  ["--data-parallel-size", "-dp"],
  ["--data-parallel-size-local", "-dpl"],
];

/** GPUs that each server needs. @throws AppError usage: a size is not a positive whole number. */
export function gpusPerServer(vllmArgs: readonly string[]): number {
  const [all, local] = DATA_SIZES.map((names) => sizeIn(vllmArgs, names));
  const sizes = SIZES.map((names) => sizeIn(vllmArgs, names) ?? 1);
  return sizes.reduce((product, size) => product * size, local ?? all ?? 1);
}

/** The value of the last of these flags, which wins as in vLLM. null: it is not given. */
export function sizeIn(args: readonly string[], names: readonly string[]): number | null {
  let size: number | null = null;
  for (const [i, arg] of args.entries()) {
    const [flag = "", inside] = arg.split("=", 2);
    if (!names.includes(flag.replaceAll("_", "-"))) continue;
    const text = inside ?? args[i + 1] ?? "";
    size = Number(text);
    if (!/^\d+$/.test(text) || size < 1) {
      throw new AppError("usage", `${flag} is "${text}"; it is a whole number from 1 on`);
    }
  }
  return size;
}

/** The machine's GPUs, named as in CUDA_VISIBLE_DEVICES; null: their number is unknown. */
export function visibleGpus(
  env: Readonly<Record<string, string | undefined>>,
  list: () => string | null = nvidiaSmi,
): readonly string[] | null {
  const given = env.CUDA_VISIBLE_DEVICES;
  const text = given ?? list();
  if (text === null) return null;
  return text
    .split(/[,\n]/)
    .map((name) => name.trim())
    .filter((name) => name !== "");
}

/** `CUDA_VISIBLE_DEVICES` of each server. @throws AppError usage: there are not enough. */
export function gpusOf(options: {
  visible: readonly string[] | null;
  servers: number;
  perServer: number;
}): string[] {
  const { visible, servers, perServer } = options;
  const needed = servers * perServer;
  if (visible !== null && visible.length < needed) {
    const shape = `${servers} servers of ${perServer} GPUs each take ${needed}`;
    const fewer = `--workers ${Math.floor(visible.length / perServer)}`;
    const sizes = "--tensor-parallel-size, --pipeline-parallel-size or --data-parallel-size";
    const message = `${shape}, and there are ${visible.length}: give ${fewer}, or smaller ${sizes}`;
    throw new AppError("usage", message);
  }
  const names = visible ?? Array.from({ length: needed }, (_, index) => String(index));
  return Array.from({ length: servers }, (_, index) =>
    names.slice(index * perServer, (index + 1) * perServer).join(","),
  );
}

/** Indices of the GPUs, one per line; null: there is no nvidia-smi, or it fails. */
function nvidiaSmi(): string | null {
  const command = Bun.which("nvidia-smi");
  if (command === null) return null;
  const query = [command, "--query-gpu=index", "--format=csv,noheader"];
  const { exitCode, stdout } = Bun.spawnSync(query, { stderr: "ignore", timeout: 10_000 });
  return exitCode === 0 ? stdout.toString() : null;
}
