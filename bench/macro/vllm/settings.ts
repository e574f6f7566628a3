// What the bench is asked to do: model, setting and sizes. The settings differ in how short KV is.

import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { writePricedModel } from "../../../scripts/model-priced.ts";
import { MODEL, ROOT } from "../../../test/vllm/fleet.ts";
import { type Dtype, type LaunchSettings, SYSTEMS, type SystemName } from "./systems.ts";

export interface Sizes {
  readonly rounds: number;
  readonly groups: number;
  readonly siblings: number;
  readonly maxTokens: number;
}

export interface Settings {
  readonly systems: readonly SystemName[];
  readonly setting: string;
  readonly sizes: Sizes;
  readonly launch: LaunchSettings;
  readonly report: string | null;
  readonly account: boolean;
}

interface Preset {
  readonly groups: string;
  readonly "kv-blocks": string;
  readonly "max-model-len": string;
  readonly "segment-mb": string;
}

/** A block holds 32 tokens on CPU. `ample` is the engine's own choice: KV is never short. */
const PRESETS: Readonly<Record<string, Preset>> = {
  paper: { groups: "4", "kv-blocks": "64", "max-model-len": "1600", "segment-mb": "256" },
  bulk: { groups: "16", "kv-blocks": "256", "max-model-len": "1600", "segment-mb": "512" },
  ample: { groups: "16", "kv-blocks": "0", "max-model-len": "0", "segment-mb": "256" },
};

const OPTIONS = {
  priced: { type: "boolean", default: false },
  dtype: { type: "string" },
  setting: { type: "string" },
  systems: { type: "string", default: SYSTEMS.join(",") },
  rounds: { type: "string", default: "5" },
  groups: { type: "string" },
  siblings: { type: "string", default: "8" },
  "max-tokens": { type: "string", default: "1024" },
  "max-num-seqs": { type: "string", default: "32" },
  "kv-blocks": { type: "string" },
  "max-model-len": { type: "string" },
  "segment-mb": { type: "string" },
  "chunk-tokens": { type: "string" },
  "ngram-tokens": { type: "string", default: "4" },
  "suffix-tokens": { type: "string", default: "16" },
  report: { type: "string" },
  account: { type: "boolean", default: false },
} as const;

/** @throws Error naming the option, its value and what it may be. */
export function readSettings(args: readonly string[]): Settings {
  const { values } = parseArgs({ options: OPTIONS, args: [...args] });
  const setting = values.setting ?? (values.priced ? "paper" : "ample");
  const preset = PRESETS[setting];
  if (preset === undefined) {
    throw new Error(`--setting is ${setting}; it is one of ${Object.keys(PRESETS).join(", ")}`);
  }
  const count = (name: string, text: string, least = 1): number => {
    const value = Number(text);
    if (Number.isInteger(value) && value >= least) return value;
    throw new Error(`--${name} is ${text}; it is a whole number from ${least} on`);
  };
  const of = (name: keyof Preset, least = 1): number =>
    count(name, values[name] ?? preset[name], least);
  const dtype = values.dtype ?? usualDtype(values.priced);
  if (dtype !== "float32" && dtype !== "bfloat16")
    throw new Error(`--dtype is ${dtype}; it is float32 or bfloat16`);
  const contextTokens = of("max-model-len", 0);
  const chunk = values["chunk-tokens"];
  return {
    systems: systemsOf(values.systems, SYSTEMS),
    setting,
    sizes: {
      rounds: count("rounds", values.rounds),
      groups: of("groups"),
      siblings: count("siblings", values.siblings),
      maxTokens: count("max-tokens", values["max-tokens"], 2),
    },
    launch: {
      model: values.priced ? pricedModel(LAYERS[dtype]) : MODEL,
      dtype,
      slots: count("max-num-seqs", values["max-num-seqs"]),
      kvBlocks: of("kv-blocks", 0),
      contextTokens: contextTokens === 0 ? null : contextTokens,
      chunkTokens: chunk === undefined ? null : count("chunk-tokens", chunk),
      segmentMib: of("segment-mb", 16),
      ngramTokens: count("ngram-tokens", values["ngram-tokens"]),
      suffixTokens: count("suffix-tokens", values["suffix-tokens"]),
    },
    report: values.report ?? null,
    account: values.account,
  };
}

export function systemsOf<Name extends string>(text: string, known: readonly Name[]): Name[] {
  const asked = text.split(",");
  const unknown = asked.find((name) => !known.some((one) => one === name));
  if (unknown !== undefined) {
    throw new Error(`--systems names ${unknown}; there are ${known.join(", ")}`);
  }
  return known.filter((name) => asked.includes(name));
}

/** Layers of the priced model with which a step of one row takes about 40 ms. */
const LAYERS: Readonly<Record<Dtype, number>> = { float32: 4, bfloat16: 12 };

/** With matrix units (AMX), more rows lengthen a step little, as on GPUs; without, float32 may be faster. */
function usualDtype(isPriced: boolean): Dtype {
  const hasAmx = readFileSync("/proc/cpuinfo", "utf8").includes("amx_bf16");
  return isPriced && hasAmx ? "bfloat16" : "float32";
}

/** The folder of `npm run model:priced -- --layers N`, made if it is not there. */
function pricedModel(layers: number): string {
  const out = join(ROOT, ".cache", layers === 4 ? "model-priced" : `model-priced-${layers}`);
  const isThere = existsSync(join(out, "hf", "config.json"));
  return isThere ? join(out, "hf") : writePricedModel({ hidden: 1024, layers, out });
}
