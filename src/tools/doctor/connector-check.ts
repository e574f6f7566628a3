// What an engine's KV connector can do for a request that moves to another server. It reads the
// engine's configuration and the project's table of connectors.

import { connectorOf } from "../../engines/vllm/connectors.ts";
import { type Finding, fail, info, ok, warn } from "./finding.ts";

const CHECK = "KV connector";

/** `config`: vllm_config of /server_info. */
export function checkConnector(config: unknown): Finding {
  const found = connectorOf(config);
  if (found === null) {
    return info(CHECK, "none: a request that moves to another server is prefilled there again");
  }
  const { className, row, savesOutput, problem, fix, mixesWeights } = found;
  if (problem !== null) {
    const description = `${className}: ${problem}`;
    const how = fix ?? "start it without --kv-transfer-config";
    return mixesWeights ? fail(CHECK, description, how) : warn(CHECK, description, how);
  }
  const saved = savesOutput ? "prompts and generated tokens" : "prompts";
  const seen = row?.wasRun === true ? "" : "; not run by this project";
  const description = `${className} keeps ${saved} in a store that all servers share${seen}`;
  if (savesOutput || row?.outputSetting == null) return ok(CHECK, description);
  const [key, value] = row.outputSetting;
  const lacking = `${description}: what a request has generated is prefilled again when it moves`;
  return warn(CHECK, lacking, `kv_connector_extra_config {"${key}": ${value}}`);
}
