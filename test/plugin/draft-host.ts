// The sidecar's draft service alone, in a process of its own, for the plugin's tests (native/foretoken_vllm/tests).
// Commands come as lines of JSON on stdin, each is answered by one on stdout; it ends with its stdin.
//
//   bun test/plugin/draft-host.ts [--token T] [--port P] [--no-drafts]

import { parseArgs } from "node:util";
import { type GroupId, groupId, weightEpoch } from "../../src/core/base/ids.ts";
import { DraftServer } from "../../src/core/draft/service/server.ts";
import { TokenColumn } from "../../src/core/request/columns.ts";
import { EngineTelemetry } from "../../src/server/drafts/engine-telemetry.ts";
import { serveDrafts } from "../suite/draft-client.ts";

interface Command {
  /** Begins a weight epoch. */
  readonly advance?: number;
  /** A response of an earlier weight epoch to every group's prompt. */
  readonly past?: number[];
  /** Tokens that the sidecar has of a response, from its beginning. */
  readonly have?: { readonly group: string; readonly sample: number; readonly tokens: number[] };
}

const { values } = parseArgs({
  options: {
    token: { type: "string" },
    port: { type: "string", default: "0" },
    "no-drafts": { type: "boolean", default: false },
  },
});

const past: Int32Array[] = [];
const responses = new Map<GroupId, Map<number, TokenColumn>>();
const clock = { nowMs: () => performance.now() };
const telemetry = new EngineTelemetry({
  clock,
  drafts: !values["no-drafts"],
  notLossless: () => {},
});
const server = new DraftServer({
  clock,
  instanceId: crypto.getRandomValues(new Uint32Array(1))[0] ?? 0,
  leads: true,
  reports: { telemetryMs: 100, report: (engine, figures) => telemetry.report(engine, figures) },
  source: {
    responses: (group) => responses.get(group) ?? [],
    past: () => past,
  },
});
const { http, service } = serveDrafts(server, {
  port: Number(values.port),
  apiToken: values.token ?? null,
});

const say = (value: unknown) => console.log(JSON.stringify(value));
say({ port: Number(http.url.port) });
for await (const line of console) {
  const { advance, have, past: earlier } = JSON.parse(line) as Command;
  if (earlier !== undefined) past.push(Int32Array.from(earlier));
  if (advance !== undefined) server.advance(weightEpoch(advance));
  if (have !== undefined) {
    const id = groupId(have.group);
    const group = responses.get(id) ?? new Map<number, TokenColumn>();
    const tokens = group.get(have.sample) ?? new TokenColumn();
    tokens.append(Int32Array.from(have.tokens), tokens.length);
    responses.set(id, group.set(have.sample, tokens));
  }
  say({ ...server.stats(), engines: telemetry.figures(), connections: service.connections });
}
await http.stop();
