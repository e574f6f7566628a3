// The adapters that are served: a new one is a folder or file, and a row here.

import { infoOf } from "../server/control/dialects.ts";
import type { RouteInfo } from "../server/route.ts";
import type { Adapter } from "./adapter.ts";
import { AREAL } from "./areal.ts";
import { SGLANG } from "./sglang/sglang.ts";
import { SKYRL } from "./skyrl/skyrl.ts";

const ADAPTERS: readonly Adapter[] = [SGLANG, AREAL, SKYRL];

export const ADAPTER_DATA = ADAPTERS.flatMap(({ data }) => data);
export const ADAPTER_CONTROL = ADAPTERS.flatMap(({ control }) => control);
export const ADAPTER_CONTROL_ROUTES: readonly RouteInfo[] = ADAPTER_CONTROL.map(infoOf);
