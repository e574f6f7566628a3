import { expect, test } from "bun:test";
import { engineKind, serverOf } from "./kinds.ts";
import { SGLANG, VLLM } from "./vllm/kind.ts";

test("engines: a URL's scheme names the kind, and no other part of it", () => {
  for (const [url, kind] of [
    ["http://a:8000", VLLM],
    ["https://a/vllm/ws://b", VLLM],
    ["sglang://a:30000", SGLANG],
  ] as const) {
    expect(engineKind(url)).toBe(kind);
  }
});

test("engines: a server answers over HTTP under its own scheme's URL", () => {
  expect(serverOf("sglang://a:30000/x")?.httpUrl("sglang://a:30000/x")).toBe("http://a:30000/x");
  expect(serverOf("https://a")?.httpUrl("https://a")).toBe("https://a");
  expect([serverOf("httpd://a"), serverOf("a:8000")]).toEqual([null, null]);
});

test("engines: a URL with more than an address is refused, and not shown", () => {
  const urls = ["http://u:secret@a", "ws:u:secret@a", "ftp://u:secret@a:b", "http://a?k=secret"];
  for (const url of [...urls, "http://a#secret", "http://a/\r\nsecret: b"]) {
    expect(() => engineKind(url)).toThrow(/^an engine's URL holds (?!.*secret)/);
  }
});

test("engines: the address of a former worker is refused, with what takes its place", () => {
  for (const url of ["ws://a:7448", "WSS://a:7448"]) {
    expect(() => engineKind(url)).toThrow(`"${url}" is the address of a worker of former versions`);
    expect(() => engineKind(url)).toThrow("start a vLLM server");
  }
});

test("engines: what no engine has is a usage error that lists the kinds", () => {
  for (const url of ["ftp://a", "a", ""]) {
    expect(() => engineKind(url)).toThrow(`"${url}"; it is http://HOST:PORT or sglang://HOST:PORT`);
  }
});
