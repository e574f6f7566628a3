// A program for distribution.test.ts, in a process of its own because kernels belong to the process: on the
// fastest kernels it draws the first two tokens of many responses, plain and drafted, and prints how often
// each pair came, next to the exact probabilities.

import { groupId, requestId } from "../../src/core/base/ids.ts";
import type { DraftQuery } from "../../src/core/draft/drafter.ts";
import { drawKey, type RequestSpec } from "../../src/core/request/request.ts";
import { LlamaContext } from "../../src/engines/llama/context.ts";
import { LlamaEngine } from "../../src/engines/llama/engine.ts";
import { loadBackend } from "../../src/engines/llama/native.ts";
import { Sampler } from "../../src/engines/llama/sampler.ts";
import { LlamaTokenizer } from "../../src/engines/llama/tokenizer.ts";
import { LlamaWeights } from "../../src/engines/llama/weights.ts";
import { samplingOf } from "../suite/request-spec.ts";
import {
  Collector,
  EPOCH,
  FixedPlanner,
  MODEL_PATH,
  NO_DRAFTS,
  run,
  runToEnd,
  type ScriptedDraft,
  ScriptedDrafter,
  stillClock,
} from "./engine-fixture.ts";

const TRIALS = 2000;
/** A short prompt whose next two tokens are highly uncertain. */
const PROMPT = "<|user|>c";
/** Slots that fill a graph with three draft rows each. */
const SLOTS = 12;

export interface TrialCounts {
  /** Probability of each pair "first second"; pairs below a threshold are left out. */
  readonly exact: Record<string, number>;
  readonly plain: Record<string, number>;
  readonly drafted: Record<string, number>;
  readonly trials: number;
}

loadBackend({ deterministic: false });
const model = LlamaWeights.load(MODEL_PATH);
const tokenizer = LlamaTokenizer.load(MODEL_PATH);
const prompt = tokenizer.encode(PROMPT);

/** Probabilities of the tokens that follow the prompt and `after`, likeliest first. */
function next(context: LlamaContext, after: readonly number[]): { token: number; p: number }[] {
  const tokens = [...prompt, ...after];
  let row = 0;
  tokens.forEach((token, position) => {
    row = context.add(token, position, 0, position === tokens.length - 1);
  });
  context.decode();
  const sampler = new Sampler(model.info.shape.vocabularySize);
  context.copyLogits(row, sampler.rowPointer);
  context.clear(0);
  const max = sampler.row.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
  const weights = Array.from(sampler.row, (logit) => Math.exp(logit - max));
  const total = weights.reduce((a, b) => a + b, 0);
  return weights
    .map((weight, token) => ({ token, p: weight / total }))
    .toSorted((a, b) => b.p - a.p);
}

const firsts: number[] = [];
const seconds = new Map<number, number[]>();
const exact: Record<string, number> = {};

function computeExact(): void {
  const context = new LlamaContext(model, { streams: 1, streamTokens: 256, batchRows: 128 });
  for (const { token, p } of next(context, []).slice(0, 12)) {
    firsts.push(token);
    const follow = next(context, [token]).slice(0, 12);
    seconds.set(
      token,
      follow.map((one) => one.token),
    );
    for (const second of follow) {
      if (p * second.p * TRIALS >= 8) exact[`${token} ${second.token}`] = p * second.p;
    }
  }
  context.free();
}

/** Likely tokens, so that drafts are right now and then: which one is the dice's choice. */
function guess(have: number, drawn: readonly number[], dice: number): ScriptedDraft {
  const likely = have === 0 ? firsts : (seconds.get(drawn[0] ?? -1) ?? firsts);
  const pick = (shift: number): number =>
    likely[(dice >>> shift) % Math.min(4, likely.length)] ?? 0;
  return { tokens: [pick(3), 5], parents: [-1, 0] };
}

function draw(seed: number, drafts: boolean): Record<string, number> {
  const group = groupId("distribution");
  const logs = new Map<string, number[]>();
  const name = (ask: DraftQuery): string => `${ask.groupId}/${ask.sampleIndex}`;
  const drafter = new ScriptedDrafter(
    (ask) => logs.get(name(ask)) ?? drafter.have.get(name(ask)) ?? [],
    ({ have, future, dice }) => guess(have, future, dice),
  );
  const planner = new FixedPlanner(3);
  const engine = new LlamaEngine({
    model,
    slots: SLOTS,
    kvTokens: 20_000,
    contextTokens: 128,
    epoch: EPOCH,
    cpuClock: stillClock,
    speculation: { drafter, planner: drafts ? planner : NO_DRAFTS },
  });
  engine.command({ kind: "register_group", groupId: group, prompt });
  const spec = (id: number): RequestSpec => ({
    requestId: requestId(id),
    groupId: group,
    sampleIndex: id,
    prompt,
    // A third token, never counted, lets drafts go beyond the second.
    sampling: samplingOf({ seed, tokensMax: 3 }),
    draw: drawKey(seed, group, id),
    divisible: true,
  });
  for (let id = 0; id < TRIALS; id += 1) engine.command(run(spec(id)));
  const collector = runToEnd(engine, new Collector());
  engine.close();
  const counts: Record<string, number> = {};
  for (const { tokens } of collector.responses.values()) {
    const pair = `${tokens[0]} ${tokens[1]}`;
    counts[pair] = (counts[pair] ?? 0) + 1;
  }
  return counts;
}

computeExact();
const answer: TrialCounts = {
  exact,
  plain: draw(101, false),
  drafted: draw(202, true),
  trials: TRIALS,
};
console.log(JSON.stringify(answer));
