// The adapters that are served: a new one is a folder or file, and a row here.

import type { Adapter } from "./adapter.ts";
import { AGENT_LIGHTNING } from "./agent-lightning.ts";
import { AREAL } from "./areal.ts";
import { PRIME_RL } from "./prime-rl.ts";
import { SGLANG } from "./sglang/sglang.ts";
import { SKYRL } from "./skyrl.ts";

const ADAPTERS: readonly Adapter[] = [SGLANG, AREAL, SKYRL, PRIME_RL, AGENT_LIGHTNING];

export const ADAPTER_DATA = ADAPTERS.flatMap(({ data = [] }) => data);
export const ADAPTER_SESSION_HEADERS = ADAPTERS.flatMap(
  ({ sessionHeaders = [] }) => sessionHeaders,
);
export const ADAPTER_CONTROL = ADAPTERS.flatMap(({ control = [] }) => control);
