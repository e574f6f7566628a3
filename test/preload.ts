// Loaded before every test file (bunfig.toml): properties draw the same cases in every run. SEED=n draws others.

import fc from "fast-check";

fc.configureGlobal({ seed: Number(process.env.SEED ?? 42) });
