// Every GET route of the OpenAPI document answers in the form that the document tells.

import { afterAll, beforeAll, expect, test } from "bun:test";
import { SimulatedWorker } from "../../test/faults/simulated/worker.ts";
import { EOS } from "../../test/golden/requests/tiny-text.ts";
import { collecting, serveOptions, startServer } from "../../test/suite/serve-fixture.ts";
import type { WorkerSource } from "../fleet/engines.ts";
import type { RunningServer } from "./options.ts";

const failures: unknown[] = [];
let sidecar: RunningServer;

const source: WorkerSource = {
  name: "simulated",
  keepsWeights: false,
  open: async ({ workerId, epoch }) => {
    const capacity = { slots: 64, kvTokens: 8192, contextTokens: 200, kvBytesPerToken: 8 };
    return new SimulatedWorker({ workerId, capacity, epoch, lengthOf: () => 9 });
  },
};

beforeAll(async () => {
  sidecar = await startServer(
    serveOptions({
      sources: [source, source],
      limits: { requestsMax: 200, groupsMax: 20, keptBytesMax: 320000 },
      chunkTokens: 4,
      poolMemoryBytes: 2 ** 20,
      weightsTimeoutMs: 60_000,
      eosTokenId: EOS,
      events: collecting(failures),
    }),
  );
});

afterAll(async () => {
  await sidecar.stop();
});

interface Operation {
  readonly parameters: readonly { readonly in: string }[];
  readonly responses: { readonly 200: { readonly content?: Readonly<Record<string, object>> } };
}

type Document = { readonly paths: Readonly<Record<string, { get?: Operation; post?: Operation }>> };

async function documented(): Promise<Document> {
  return (await (await fetch(new URL("/openapi.json", sidecar.url))).json()) as Document;
}

test("serve: every GET route answers in the documented form", async () => {
  for (const [path, { get }] of Object.entries((await documented()).paths)) {
    if (get === undefined || get.parameters.some((one) => one.in === "path")) continue;
    const answer = await fetch(new URL(path, sidecar.url));
    // Simulated engines have no control plane.
    if (answer.status === 404) continue;
    const types = Object.keys(get.responses[200].content ?? {});
    const type = answer.headers.get("content-type")?.split(";")[0] ?? null;
    expect([path, answer.status, type]).toEqual([path, 200, types[0] ?? null]);
    await answer.text();
  }
});
