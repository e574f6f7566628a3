// Everything that the fuzzer attacks: every parser that takes bytes from outside.

import type { FuzzTarget } from "./target.ts";
import { engineTargets } from "./targets/engine.ts";
import { httpTargets } from "./targets/http.ts";
import { journalTargets } from "./targets/journal.ts";
import { recordingTargets } from "./targets/recordings.ts";
import { socketTargets } from "./targets/sockets.ts";
import { stateTargets } from "./targets/state.ts";
import { weightTargets } from "./targets/weights.ts";

export const targets: readonly FuzzTarget[] = [
  ...weightTargets,
  ...recordingTargets,
  ...stateTargets,
  ...journalTargets,
  ...socketTargets,
  ...engineTargets,
  ...httpTargets(),
];
