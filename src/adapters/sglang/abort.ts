// The part of SGLang's control plane that slime uses on a router: the list of workers, and aborts.

import * as v from "valibot";
import { checked, flag, ignored, name } from "../../server/openai/fields.ts";
import type { DataPlane } from "../../server/openai/plane.ts";
import { invalid } from "../../server/openai/sampling-fields.ts";

export const sglangAbortRequest = v.strictObject({
  rid: name,
  /** `rid` is what the ids begin with (miles: of all requests of an adapter). */
  prefix: flag,
  abort_all: flag,
  finished_reason: ignored,
  abort_message: ignored,
});

/** Their answers come as they stand, with finish_reason abort. */
export function abortSglang(plane: DataPlane, body: unknown): object {
  const { rid, prefix, abort_all: all } = checked(sglangAbortRequest, body);
  const name = rid ?? "";
  if (all !== true && name === "") throw invalid("rid", "or abort_all must be there");
  const isNamed = (id: string) => (prefix === true ? id.startsWith(name) : id === name);
  const isMeant = (id: string) => all === true || isNamed(id);
  let aborted = 0;
  for (const job of [...plane.jobs]) {
    if (isMeant(job.id)) {
      job.abort();
      aborted += 1;
      continue;
    }
    for (const [index, one] of (job.plan.names ?? []).entries()) {
      if (!isMeant(one)) continue;
      job.abortPrompt(index);
      aborted += 1;
    }
  }
  return { success: true, aborted };
}
