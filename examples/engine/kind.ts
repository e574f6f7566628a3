// The row of the example: worker.ts tells what it is. src/engines/kinds.ts does not list it, so no URL selects it.

import type { EngineKind } from "../../src/engines/kind.ts";
import { openExampleWorker } from "./worker.ts";

export const EXAMPLE: EngineKind = {
  // The part of its URLs before "://", which no other kind has.
  schemes: ["example"],
  form: "example://HOST:PORT",
  // null: the server does not tell its model, and `--model` or `--tokenizer` names the vocabulary.
  server: null,
  opener: (url, access) => (options) => openExampleWorker({ url, ...access, ...options }),
};
