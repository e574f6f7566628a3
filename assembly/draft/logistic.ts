// The logit and its inverse from tables (PAQ's stretch and squash), linear between the entries.

// stretch: the odds from 2^-10 to 2^11 in eight steps an octave (the top bits of an f32).
const STEP_SHIFT: u32 = 20;
const STEP_FIRST: u32 = (127 - 10) << 3;
const STEPS: u32 = 21 << 3;
const stretched: usize = memory.data(169 * 4, 16);

// squash: z in [-12, 12], sixteen steps a unit.
const SQUASH_MAX: f64 = 12;
const SQUASH_STEPS: u32 = 24 << 4;
const squashed: usize = memory.data(385 * 4, 16);

export function logisticBegin(): void {
  for (let i: u32 = 0; i <= STEPS; i++) {
    const odds = reinterpret<f32>((STEP_FIRST + i) << STEP_SHIFT);
    store<f32>(stretched + ((<usize>i) << 2), <f32>Math.log(<f64>odds));
  }
  for (let i: u32 = 0; i <= SQUASH_STEPS; i++) {
    const z = <f64>i / 16 - SQUASH_MAX;
    store<f32>(squashed + ((<usize>i) << 2), <f32>(1 / (1 + Math.exp(-z))));
  }
}

function between(table: usize, part: f64): f64 {
  const low = <f64>load<f32>(table);
  return low + (<f64>load<f32>(table, 4) - low) * part;
}

// ln(p / (1 - p)) of a probability above 0.
export function stretch(p: f64): f64 {
  const bits = reinterpret<u32>(<f32>(p / max<f64>(1 - p, 1e-9)));
  const step = bits >> STEP_SHIFT;
  if (step < STEP_FIRST) return <f64>load<f32>(stretched);
  if (step >= STEP_FIRST + STEPS) return <f64>load<f32>(stretched + ((<usize>STEPS) << 2));
  const part = <f64>(bits & ((1 << STEP_SHIFT) - 1)) / <f64>(1 << STEP_SHIFT);
  return between(stretched + ((<usize>(step - STEP_FIRST)) << 2), part);
}

// 1 / (1 + exp(-z)).
export function squash(z: f64): f64 {
  const at = (min<f64>(max<f64>(z, -SQUASH_MAX), SQUASH_MAX - 0.001) + SQUASH_MAX) * 16;
  const step = <u32>at;
  return between(squashed + ((<usize>step) << 2), at - <f64>step);
}

export function oddsOf(probability: f64): f64 {
  return probability / (1 - probability);
}
