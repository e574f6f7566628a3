// As light.test.ts, for trainers that no registry has: RLLM, NEMO_GYM, MILES and SLIME name the folders of their sources.

import { engineMissing } from "../e2e/tool.ts";
import { SOURCE_DRIVERS, startEmbedded, testDrivers } from "./clients.ts";

testDrivers(SOURCE_DRIVERS, { missing: engineMissing(), start: startEmbedded });
