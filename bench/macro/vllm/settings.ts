// What the bench is asked to do: model, setting and sizes. The settings differ in how short KV is.

import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { writePricedModel } from "../../../scripts/model-priced.ts";
import { MODEL, ROOT } from "../../../test/vllm/fleet.ts";
import { flagsOf, oneOf, someOf } from "../../harness.ts";
import { type Dtype, type LaunchSettings, SYSTEMS } from "./systems.ts";

/** A block holds 32 tokens on CPU. `ample` is the engine's own choice: KV is never short. */
const PRESETS = {
  paper: { groups: 4, kvBlocks: 64, maxModelLen: 1600, segmentMb: 256 },
  bulk: { groups: 16, kvBlocks: 256, maxModelLen: 1600, segmentMb: 512 },
  ample: { groups: 16, kvBlocks: 0, maxModelLen: 0, segmentMb: 256 },
} as const;

const FLAGS = {
  priced: false,
  dtype: null,
  setting: null,
  systems: null,
  rounds: 5,
  siblings: 8,
  maxTokens: 1024,
  maxNumSeqs: 32,
  chunkTokens: 0,
  ngramTokens: 4,
  suffixTokens: 16,
  account: false,
} as const;

/** @throws AppError usage, naming the option, its value and what it may be. */
export function readSettings(args: readonly string[], path = import.meta.path) {
  const unset = { groups: -1, kvBlocks: -1, maxModelLen: -1, segmentMb: -1 };
  const flags = flagsOf(path, { ...FLAGS, ...unset }, args);
  const names = Object.keys(PRESETS) as (keyof typeof PRESETS)[];
  const setting = oneOf("setting", flags.setting ?? (flags.priced ? "paper" : "ample"), names);
  const preset = PRESETS[setting];
  const of = (name: keyof typeof unset): number => (flags[name] < 0 ? preset[name] : flags[name]);
  const dtype = oneOf("dtype", flags.dtype ?? usualDtype(flags.priced), ["float32", "bfloat16"]);
  const { rounds, siblings, maxTokens, chunkTokens, ngramTokens, suffixTokens } = flags;
  const launch: LaunchSettings = {
    model: flags.priced ? pricedModel(LAYERS[dtype]) : MODEL,
    dtype,
    slots: flags.maxNumSeqs,
    kvBlocks: of("kvBlocks"),
    contextTokens: of("maxModelLen") || null,
    chunkTokens: chunkTokens || null,
    segmentMib: of("segmentMb"),
    ngramTokens,
    suffixTokens,
  };
  return {
    systems: someOf("systems", flags.systems, SYSTEMS),
    setting,
    sizes: { rounds, groups: of("groups"), siblings, maxTokens },
    launch,
    json: flags.json,
    account: flags.account,
  };
}

export type Settings = ReturnType<typeof readSettings>;

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
