// The part of SGLang's control plane that slime uses on a router: the list of workers, and aborts.

import * as v from "valibot";
import { checked, flag, ignored, name } from "../openai/fields.ts";
import type { DataPlane } from "../openai/plane.ts";
import { invalid } from "../openai/sampling-fields.ts";

export const sglangAbortRequest = v.strictObject({
  rid: name,
  abort_all: flag,
  finished_reason: ignored,
  abort_message: ignored,
});

/** Their answers come as they stand, with finish_reason abort. */
export function abortSglang(plane: DataPlane, body: unknown): object {
  const { rid, abort_all: all } = checked(sglangAbortRequest, body);
  if (all !== true && (rid ?? "") === "") {
    throw invalid("rid", "or abort_all must be there");
  }
  const isMeant = (id: string) => all === true || id === rid;
  let aborted = 0;
  for (const job of [...plane.jobs]) {
    if (isMeant(job.id)) {
      job.abort();
      aborted += 1;
      continue;
    }
    for (const [index, name] of (job.plan.names ?? []).entries()) {
      if (!isMeant(name)) continue;
      job.abortPrompt(index);
      aborted += 1;
    }
  }
  return { success: true, aborted };
}
