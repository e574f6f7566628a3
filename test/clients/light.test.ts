// Trainers' own client classes, unmodified, against `foretoken serve --llama 2`: groups, second turns, weight updates,
// aborts. Their packages need no torch: `npm run clients:install`.

import { engineMissing } from "../e2e/tool.ts";
import { LIGHT, LIGHT_DRIVERS, startEmbedded, testDrivers } from "./clients.ts";

testDrivers(LIGHT_DRIVERS, { missing: LIGHT.missing ?? engineMissing(), start: startEmbedded });
