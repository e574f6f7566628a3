import { expect, test } from "bun:test";
import { apiKeyIn, sessionKeyOf } from "./access.ts";

test("session key: a name, then a group, then the server's token; another key names none", () => {
  const keys: [string, ReturnType<typeof sessionKeyOf>][] = [
    ["SESSION:a", { session: "a", group: null, token: null }],
    ["SESSION:task:7/3", { session: "task:7/3", group: null, token: null }],
    ["SESSION:a;GROUP:g", { session: "a", group: "g", token: null }],
    ["SESSION:a;TOKEN:t;x", { session: "a", group: null, token: "t;x" }],
    ["SESSION:a;GROUP:g;TOKEN:t", { session: "a", group: "g", token: "t" }],
    ["SESSION:", null],
    ["SESSION:a;GROUP:", null],
    ["sk-1234", null],
  ];
  for (const [key, wanted] of keys) expect([key, sessionKeyOf(key)]).toEqual([key, wanted]);
  expect(sessionKeyOf(null)).toBeNull();
});

test("session key: OpenAI's clients send it as a bearer token, Anthropic's in a header", () => {
  expect(apiKeyIn(new Headers({ authorization: "Bearer SESSION:a" }))).toBe("SESSION:a");
  expect(apiKeyIn(new Headers({ "x-api-key": "SESSION:b" }))).toBe("SESSION:b");
  expect(apiKeyIn(new Headers())).toBeNull();
});
