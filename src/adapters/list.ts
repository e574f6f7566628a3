// The list of adapters that compose/features.ts serves. To add one, see docs/EXTENDING.md.

import type { Adapter } from "./adapter.ts";
import { AGENT_LIGHTNING } from "./agent-lightning.ts";
import { ANTHROPIC } from "./anthropic/anthropic.ts";
import { AREAL } from "./areal.ts";
import { PRIME_RL } from "./prime-rl.ts";
import { SGLANG } from "./sglang/sglang.ts";
import { SKYRL } from "./skyrl.ts";

const ADAPTERS: readonly Adapter[] = [SGLANG, AREAL, SKYRL, PRIME_RL, AGENT_LIGHTNING, ANTHROPIC];

export const ADAPTER_DATA = ADAPTERS.flatMap(({ data = [] }) => data);
export const ADAPTER_SESSION_HEADERS = ADAPTERS.flatMap(
  ({ sessionHeaders = [] }) => sessionHeaders,
);
export const ADAPTER_CONTROL = ADAPTERS.flatMap(({ control = [] }) => control);
