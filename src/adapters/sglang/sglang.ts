// SGLang's server, as slime and miles attach to it.

import * as v from "valibot";
import { type DataPlane, generates, replies } from "../../server/openai/data-plane.ts";
import * as f from "../../server/openai/fields.ts";
import { invalid } from "../../server/route.ts";
import type { Adapter } from "../adapter.ts";
import { SGLANG_CONTROL } from "./control.ts";
import { parseSglang, sglangRequest } from "./generate.ts";

const abortRequest = v.strictObject({
  /** "" is SGLang's own default: none. */
  rid: v.nullish(f.text),
  /** Aborts all requests whose ids begin with `rid` (miles: those of an adapter). */
  prefix: f.flag,
  abort_all: f.flag,
  ...f.ignoring("finished_reason", "abort_message"),
});

export const SGLANG: Adapter = {
  // slime gives each sample its own, and miles each session.
  sessionHeaders: ["X-SMG-Routing-Key"],
  data: [
    generates("/generate", "Responses in SGLang's shape", {
      schema: sglangRequest,
      parse: parseSglang,
      streams: false,
    }),
    replies("/abort_request", "Gives up a request, or all, in SGLang's shape", {
      schema: abortRequest,
      reply: (plane, _exchange, fields) => abort(plane, fields),
    }),
  ],
  control: SGLANG_CONTROL,
};

/** Aborts requests. Their clients get the output so far, with finish_reason abort. */
function abort(plane: DataPlane, fields: v.InferOutput<typeof abortRequest>): object {
  const name = fields.rid ?? "";
  if (fields.abort_all !== true && name === "") throw invalid("rid", "or abort_all must be there");
  const isNamed = (id: string) => (fields.prefix === true ? id.startsWith(name) : id === name);
  const isMeant = (id: string) => fields.abort_all === true || isNamed(id);
  return { success: true, aborted: plane.jobs.abortNamed(isMeant) };
}
