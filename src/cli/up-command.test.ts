import { expect, test } from "bun:test";
import { withoutDrafts } from "./up-command.ts";

test("withoutDrafts: leaves out speculation however it is written, and nothing else", () => {
  const config = '{"method":"suffix"}';
  const rest = ["--dtype", "float32", "--enable-lora"];
  expect(withoutDrafts(["--speculative-config", config, ...rest])).toEqual(rest);
  expect(withoutDrafts([...rest, `--speculative-config=${config}`])).toEqual(rest);
  expect(withoutDrafts(["-sc", config, ...rest])).toEqual(rest);
  expect(withoutDrafts(["--speculative-config.method", "ngram", ...rest])).toEqual(rest);
  expect(withoutDrafts(["--speculative-config.method=ngram", ...rest])).toEqual(rest);
  expect(withoutDrafts(rest)).toEqual(rest);
});
