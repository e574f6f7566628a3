// The names in the environment that are meant for Foretoken: a misspelt one would be ignored in silence.

import { AppError } from "../core/base/errors.ts";
import { unknownName } from "../core/base/unknown-name.ts";
import { envName, FIELDS } from "./fields.ts";

const PREFIX = "FORETOKEN_";
/** Names that are no options: the plugin's settings (settings.py), the Python package's, and those of builds and tests. */
const OTHERS = `
  BESIDE CORE CORE_MB DRAFTS DRAFT_URL ENGINE EXACT FETCH_MS FLUSH_MS GROUPS_MAX LOGS_MB PROBABILITY_MIN REPAIR STATS_FILE TOKEN
  TTL_S LAUNCHER PARENT PROGRAM PROGRAM_DIR URL WHEEL_PLATFORM ADVERSARY BUN GRPO_PYTHON TEST_STOP_FILE`
  .trim()
  .split(/\s+/)
  .map((name) => PREFIX + name);
/** Variables that Kubernetes sets for services: for a service named `foretoken` they have our prefix. */
const SERVICE_LINK = /_SERVICE_(HOST|PORT\w*)$|_PORT(_\d+_\w+)?$/;

/** Throws AppError usage if a name with our prefix is not known. */
export function checkEnvironment(names: readonly string[]): void {
  const known = [...new Set([...Object.values(FIELDS).map(envName), ...OTHERS])];
  const unknown = names.find(
    (name) => name.startsWith(PREFIX) && !known.includes(name) && !SERVICE_LINK.test(name),
  );
  if (unknown === undefined) return;
  throw new AppError("usage", `${unknown} in the environment ${unknownName(unknown, known)}`);
}
