// Valid calls in any order, with and without faults of engines: no sequence of them may leave the sidecar unable to
// generate, mix epochs in a strict response, generate during a pause, or answer otherwise than the trainer's model says.

import fc from "fast-check";
import { type FuzzTarget, target } from "../target.ts";
import { FAULT_KINDS, STEP_KINDS, type Step, Trainer } from "../trainer.ts";
import { openTrainerBed, type TrainerBed } from "../trainer-bed.ts";
import { listInputs } from "../variations.ts";

const STEPS = { minLength: 4, maxLength: 20, size: "max" } as const;

function stepsOf(kinds: readonly string[]) {
  const step = fc.record({ kind: fc.constantFrom(...kinds), choice: fc.nat({ max: 251 }) });
  return listInputs(fc.array(step, STEPS), (base, other, dice) =>
    dice.below(2) === 0 ? other : { kind: base.kind, choice: dice.below(252) },
  );
}

/** `width`: sequences that run at the same time, each on a sidecar of its own. */
function sequences(name: string, kinds: readonly string[], width: number): FuzzTarget {
  return target<readonly Step[]>(name, async () => {
    const free: TrainerBed[] = [];
    return {
      inputs: stepsOf(kinds),
      width,
      take: async (steps) => {
        const bed = free.pop() ?? (await openTrainerBed());
        try {
          await new Trainer(bed).take(steps);
        } catch (error) {
          // What it left behind is not the next sequence's.
          await bed.close();
          throw error;
        }
        free.push(bed);
      },
      close: async () => {
        await Promise.all(free.map((bed) => bed.close()));
      },
    };
  });
}

export const sequenceTargets: readonly FuzzTarget[] = [
  sequences("sequences", STEP_KINDS, 2),
  // An engine that failed is opened again after 0.1 s or more.
  sequences("sequences with faults", [...STEP_KINDS, ...FAULT_KINDS], 8),
];
