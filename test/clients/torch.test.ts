// As light.test.ts, for trainers whose classes need torch: `npm run clients:install -- --torch`.

import { engineMissing } from "../e2e/tool.ts";
import { startEmbedded, TORCH, TORCH_DRIVERS, testDrivers } from "./clients.ts";

testDrivers(TORCH_DRIVERS, { missing: TORCH.missing ?? engineMissing(), start: startEmbedded });
