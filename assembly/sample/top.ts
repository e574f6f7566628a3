// The likeliest tokens of the row that `sample` has just drawn from, and their log-probabilities in it.

import { scaleOf } from "./draw";
import { RESULT, ROW, rowLength, TOP, TOP_MAX } from "./layout";

export function topTokensOffset(): usize {
  return TOP;
}

export function topLogprobsOffset(): usize {
  return TOP + TOP_MAX * 4;
}

/**
 * Writes up to `count` (1..TOP_MAX) tokens, likeliest first, lowest id first among equals; returns how
 * many tokens with any probability there were.
 */
export function top(n: i32, temperature: f64, count: i32): i32 {
  const end = ROW + ((<usize>rowLength(n)) << 2);
  let found = 0;
  let least: f32 = -Infinity;
  for (let at = ROW; at < end; at += 16) {
    if (!v128.any_true(f32x4.gt(v128.load(at), f32x4.splat(least)))) continue;
    for (let lane: usize = 0; lane < 16; lane += 4) {
      const logit = load<f32>(at + lane);
      if (!(logit > least)) continue;
      found = insert(logit, <i32>((at + lane - ROW) >> 2), found, count);
      if (found == count) least = load<f32>(slotOf(count - 1) + TOP_MAX * 4);
    }
  }
  toLogprobs(temperature, found);
  return found;
}

function slotOf(index: i32): usize {
  return TOP + ((<usize>index) << 2);
}

/** Inserts behind all that are at least as likely; the last of a full list falls out. */
function insert(logit: f32, token: i32, found: i32, count: i32): i32 {
  let at = found < count ? found : count - 1;
  while (at > 0 && load<f32>(slotOf(at - 1) + TOP_MAX * 4) < logit) {
    store<i32>(slotOf(at), load<i32>(slotOf(at - 1)));
    store<f32>(slotOf(at) + TOP_MAX * 4, load<f32>(slotOf(at - 1) + TOP_MAX * 4));
    at -= 1;
  }
  store<i32>(slotOf(at), token);
  store<f32>(slotOf(at) + TOP_MAX * 4, logit);
  return found < count ? found + 1 : count;
}

function toLogprobs(temperature: f64, found: i32): void {
  const scale = scaleOf(temperature);
  const logTotal = load<f64>(RESULT, 8);
  const max = <f64>load<f32>(slotOf(0) + TOP_MAX * 4);
  for (let i = 0; i < found; i += 1) {
    const at = slotOf(i) + TOP_MAX * 4;
    store<f32>(at, <f32>((<f64>load<f32>(at) - max) * scale - logTotal));
  }
}
