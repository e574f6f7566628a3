// The request by which a server is tried: one token after a prompt of two.

import { groupId, requestId, weightEpoch } from "../../core/base/ids.ts";
import { type RequestSpec, SAMPLING_DEFAULTS } from "../../core/request/request.ts";

export const PROBE: RequestSpec = {
  requestId: requestId(0),
  groupId: groupId("probe"),
  sampleIndex: 0,
  prompt: Int32Array.of(0, 0),
  sampling: {
    temperature: 0,
    seed: 0,
    tokensMax: 1,
    stopTokenIds: [],
    ...SAMPLING_DEFAULTS,
  },
  draw: { hi: 0, lo: 0 },
  divisible: true,
};

/** Without the salt and the run. */
export const PROBE_ASK = {
  name: "ft-probe",
  spec: PROBE,
  offset: 0,
  tokens: PROBE.prompt,
  tokensMax: 1,
  isLast: true,
  priority: -1,
  epoch: weightEpoch(0),
  streamInterval: 2,
  draft: null,
  form: "stream",
  expertsFrom: null,
} as const;
