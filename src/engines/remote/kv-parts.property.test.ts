// KV in parts, both ways, over connections that are cut at any byte: it arrives whole and once, with the run
// that it belongs to, or not at all; and others' tokens do not wait for it.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { CuttingProxy } from "../../../test/faults/cutting-proxy.ts";
import { listen, open, turn, until } from "../../../test/suite/link-fixture.ts";
import { newSpec, runOf } from "../../../test/suite/simulated-runs.ts";
import { StubWorker } from "../../../test/suite/stub-worker.ts";
import { type RequestId, requestId, weightEpoch, workerId } from "../../core/base/ids.ts";
import type { KvBlob, WorkerCommand } from "../../core/rollout/worker.ts";
import { decodeSidecarMessage } from "./codec.ts";
import { KvInbox, kvMessages } from "./kv-parts.ts";
import { LINK_LIMITS } from "./limits.ts";
import type { KvPart } from "./message.ts";

const EPOCH = weightEpoch(0);
const TOKENS = 2;

function blobOf(id: number, size: number): KvBlob {
  const bytes = new Uint8Array(size);
  for (let i = 0; i < size; i += 1) bytes[i] = i * 31 + (i >> 8) + id;
  return { tokens: TOKENS, bytes: bytes.buffer };
}

const same = (a: ArrayBuffer, b: ArrayBuffer) => Buffer.from(a).equals(Buffer.from(b));

/** Takes a run's KV, makes a token and parks; hands out KV of the size that is asked for. */
class KvWorker extends StubWorker {
  readonly workerId = workerId(0);
  readonly name = "kv";
  readonly capacity = { slots: 64, kvTokens: 1000, contextTokens: 64, kvBytesPerToken: 1 };
  readonly taken = new Map<RequestId, KvBlob | null>();
  readonly released: RequestId[] = [];
  exportBytes = (_id: RequestId): number => 0;

  send(commands: readonly WorkerCommand[]): void {
    for (const command of commands) {
      if (command.kind === "run") {
        const { requestId: id } = command.request;
        expect(this.taken.has(id)).toBe(false);
        this.taken.set(id, command.kv);
        const made = { tokens: Int32Array.of(1), logprobs: Float32Array.of(-1), top: null };
        const offset = command.output.length;
        this.tell(EPOCH, [
          { kind: "tokens", requestId: id, offset, ...made },
          { kind: "chunk_done", requestId: id, finish: null },
        ]);
      } else if (command.kind === "export") {
        const { requestId: id } = command;
        const kv = blobOf(id, this.exportBytes(id));
        this.tell(EPOCH, [{ kind: "exported", requestId: id, kv }]);
      } else if (command.kind === "release") this.released.push(command.requestId);
    }
  }
}

const kvRun = (id: number, bytes: number) =>
  runOf(newSpec(id), { from: 1, chunkTokens: 1, kv: blobOf(id, bytes) });

const plainRun = (id: number) => runOf(newSpec(id), { from: 1, chunkTokens: 1 });

test("link: KV in parts arrives whole, both ways, or not at all if it is released or the link is cut", async () => {
  let [whole, cut] = [0, 0];
  const size = fc.integer({ min: 1, max: 5_000 });
  const request = fc.record({ in: size, out: size, isReleased: fc.boolean() });
  await fc.assert(
    fc.asyncProperty(
      fc.array(request, { minLength: 1, maxLength: 12 }),
      fc.constantFrom(100, 300, 1000),
      fc.constantFrom(2048, LINK_LIMITS.kvWindowBytes),
      // After the handshake.
      fc.option(fc.integer({ min: 3_000, max: 40_000 })),
      async (requests, kvPartBytes, kvWindowBytes, cutAfterBytes) => {
        const worker = new KvWorker();
        worker.exportBytes = (id) => requests[id]?.out ?? 0;
        const limits = { heartbeatMs: 10, kvPartBytes, kvWindowBytes };
        const host = await listen(worker, { limits });
        const proxy = await CuttingProxy.before(host.url);
        proxy.cutAfterBytes = cutAfterBytes;
        const linked = await open(proxy.url, { limits }).catch(() => null);
        const exported = new Map<RequestId, KvBlob | null>();
        let isFailed = linked === null;
        linked?.listen((_epoch, events) => {
          for (const event of events) {
            if (event.kind === "chunk_done") {
              linked.send([{ kind: "export", requestId: event.requestId }]);
            } else if (event.kind === "exported") {
              expect(exported.has(event.requestId)).toBe(false);
              exported.set(event.requestId, event.kv);
            } else if (event.kind === "failed") isFailed = true;
          }
        });
        linked?.send(requests.map((one, id) => kvRun(id, one.in)));
        const gone = requests.flatMap((one, id) => (one.isReleased ? [requestId(id)] : []));
        await turn();
        linked?.send(gone.map((id) => ({ kind: "release", requestId: id })));
        const wanted = requests.length - gone.length;
        const isDone = () =>
          [...exported.keys()].filter((id) => !gone.includes(id)).length === wanted;
        await until(() => isDone() || isFailed, "the end");
        if (cutAfterBytes === null) expect(isFailed).toBe(false);
        if (isFailed) cut += 1;
        else whole += 1;
        for (const [id, kv] of worker.taken) {
          expect(
            same(kv?.bytes ?? new ArrayBuffer(0), blobOf(id, requests[id]?.in ?? 0).bytes),
          ).toBe(true);
        }
        for (const [id, kv] of exported) {
          if (gone.includes(id) && kv === null) continue;
          expect(
            same(kv?.bytes ?? new ArrayBuffer(0), blobOf(id, requests[id]?.out ?? 0).bytes),
          ).toBe(true);
        }
        await linked?.close();
        await host.close();
        await proxy.close();
      },
    ),
    { numRuns: 40 },
  );
  expect(whole).toBeGreaterThan(0);
  expect(cut).toBeGreaterThan(0);
}, 180_000);

test("link: KV larger than a message goes both ways, and tokens of others pass it", async () => {
  const bytes = 6 * 2 ** 20;
  const worker = new KvWorker();
  worker.exportBytes = () => bytes;
  const limits = { messageBytesMax: 2 * 2 ** 20, bufferBytesMax: 8 * 2 ** 20 };
  const host = await listen(worker, { limits });
  const linked = await open(host.url, { limits });
  const order: string[] = [];
  let exported: KvBlob | null = null;
  linked.listen((_epoch, events) => {
    for (const event of events) {
      if (event.kind === "failed") throw new Error(event.message);
      if (event.kind === "chunk_done") order.push(`done ${event.requestId}`);
      if (event.kind !== "exported") continue;
      order.push(`exported ${event.requestId}`);
      if (event.requestId === 0) exported = event.kv;
    }
  });
  linked.send([kvRun(0, bytes)]);
  linked.send([plainRun(1)]);
  await until(() => order.length === 2, "both runs");
  expect(order).toEqual(["done 1", "done 0"]);
  expect(
    same(worker.taken.get(requestId(0))?.bytes ?? new ArrayBuffer(0), blobOf(0, bytes).bytes),
  ).toBe(true);
  linked.send([{ kind: "export", requestId: requestId(0) }]);
  linked.send([plainRun(2)]);
  await until(() => order.length === 4, "the exported KV");
  expect(order.slice(2)).toEqual(["done 2", "exported 0"]);
  expect(
    same((exported as KvBlob | null)?.bytes ?? new ArrayBuffer(0), blobOf(0, bytes).bytes),
  ).toBe(true);
  await linked.close();
  await host.close();
}, 180_000);

test("KV in parts: the message that uses it follows its last part, unless it is not wanted by then", () => {
  const last = new Uint8Array(3);
  let wanted = 2;
  const messages = (isWanted: () => boolean) =>
    kvMessages(blobOf(1, 250), { partBytes: 100, last: () => last, isWanted });
  const bytesIn = (frame: Uint8Array) => {
    const decoded = decodeSidecarMessage(frame);
    if (decoded.kind !== "ok" || decoded.message.kind !== "kv_part") throw new Error("no part");
    return decoded.message.part.bytes;
  };
  const sent = [...messages(() => true)];
  expect(sent.length).toBe(4);
  expect(sent.at(-1)).toBe(last);
  expect(
    Buffer.concat(sent.slice(0, -1).map(bytesIn)).equals(Buffer.from(blobOf(1, 250).bytes)),
  ).toBe(true);
  const begun = [...messages(() => wanted-- > 0)].map((frame) => bytesIn(frame).length);
  expect(begun).toEqual([100, 100]);
});

test("KV in parts: what is out of order, too large, or used before it is whole is refused by name", () => {
  const part = (offset: number, total: number, length: number): KvPart => ({
    offset,
    total,
    bytes: new Uint8Array(length),
  });
  const streamed = (bytes: number) => ({ tokens: 1, bytes });
  const inbox = () => new KvInbox(1000);
  expect(inbox().add(part(0, 1001, 10))).toBe("KV has 1001 bytes, above 1000");
  expect(inbox().add(part(5, 10, 5))).toContain("its first one is missing");
  expect(inbox().add(part(0, 10, 11))).toContain("11 bytes from 0 of 10");
  expect(inbox().add(part(0, 10, 0))).toContain("0 bytes from 0 of 10");
  expect(inbox().resolve(streamed(5))).toContain("used after 0 of 0");
  const begun = inbox();
  expect(begun.add(part(0, 10, 4))).toBe(null);
  expect(begun.add(part(5, 10, 5))).toContain("5 bytes from 5 of 10, after 4");
  expect(begun.add(part(4, 11, 5))).toContain("of 11, after 4 of 10");
  // Offset 0 begins another one.
  expect(begun.add(part(0, 3, 3))).toBe(null);
  expect(begun.resolve(streamed(3))).toEqual({ tokens: 1, bytes: new ArrayBuffer(3) });
  expect(begun.resolve(streamed(3))).toContain("used after 0 of 0");
});
