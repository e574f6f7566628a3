import { expect, test } from "bun:test";
import { Engine } from "../tools/doctor/engine.ts";
import { tokensOf } from "./verify-servers.ts";

test("tokensOf: a server gets a chat with the numbers that the file has", async () => {
  const bodies: string[] = [];
  const server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    fetch: async (request) => {
      bodies.push(await request.text());
      return Response.json({ tokens: [1, 2] });
    },
  });
  const source = `{"id":"a","messages":[{"role":"user","content":"x","big":12345678901234567890}],"documents":[{"1":1.0}]}`;
  try {
    const engine = new Engine(`http://127.0.0.1:${server.port}`, null);
    const line = { line: 1, group: JSON.parse(source), source };
    expect(await tokensOf(engine, line)).toEqual({ id: "a", tokens: [1, 2] });
  } finally {
    await server.stop(true);
  }
  expect(bodies[0]).toContain("12345678901234567890");
  expect(bodies[0]).toContain("1.0");
  expect(JSON.parse(bodies[0] ?? "")).toMatchObject({ model: null, add_special_tokens: false });
});
