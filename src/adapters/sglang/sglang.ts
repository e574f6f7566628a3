// SGLang's server, as slime and miles attach to it.

import { generates, replies } from "../../server/openai/data-plane.ts";
import type { Adapter } from "../adapter.ts";
import { abortSglang, sglangAbortRequest } from "./abort.ts";
import { SGLANG_CONTROL } from "./control.ts";
import { prepareSglang, sglangRequest } from "./generate.ts";

export const SGLANG: Adapter = {
  name: "sglang",
  data: [
    generates("/generate", "Responses in SGLang's shape", {
      schema: sglangRequest,
      prepare: prepareSglang,
      streams: false,
    }),
    replies("/abort_request", "Gives up a request, or all, in SGLang's shape", {
      schema: sglangAbortRequest,
      reply: (plane, _exchange, body) => abortSglang(plane, body),
    }),
  ],
  control: SGLANG_CONTROL,
};
