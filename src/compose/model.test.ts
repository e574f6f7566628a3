// What is known of the model while workers come and go before the first of them has answered.

import { expect, test } from "bun:test";
import { join } from "node:path";
import { openModelSide } from "./model.ts";

const SETTINGS = {
  embedded: null,
  model: null,
  tokenizer: join(import.meta.dir, "..", "..", "model", "hf"),
  servedModelName: null,
};
const addressed = (urls: readonly string[]) => urls.map((url) => ({ url, token: null }));

/** An address without a listener. */
const DEAD = "http://127.0.0.1:1";

test("model: a server that leaves before it has answered is not waited for once an engine that names no model has come", async () => {
  const rounds = [[DEAD], [], ["example://127.0.0.1:1"]];
  const engines = () => addressed(rounds[Math.min(seen.length, rounds.length - 1)] ?? []);
  const seen: number[] = [];
  const { signal } = new AbortController();
  const tried = (problems: readonly string[]) => seen.push(problems.length);
  const { names } = await openModelSide(SETTINGS, engines, { signal, tried });
  // The second time there was nothing to ask, and so nothing that failed.
  expect(seen.slice(0, 2)).toEqual([1, 0]);
  expect(names).toEqual(["foretoken"]);
});

test("model: if the first worker leaves before it is asked, the next one is waited for", async () => {
  const server = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    fetch: () => Response.json({ data: [{ id: "served", root: "/none", max_model_len: 100 }] }),
  });
  try {
    let asked = 0;
    const engines = () => addressed(asked++ < 3 ? [] : [server.url.origin]);
    const { signal } = new AbortController();
    const { names } = await openModelSide(SETTINGS, engines, { signal, tried: () => {} });
    expect(names).toEqual(["served"]);
  } finally {
    await server.stop(true);
  }
});
