import { expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../../test/suite/temporary-folder.ts";
import { eosTokensOf } from "./hugging-face.ts";

const folder = temporaryFolder("eos");

const write = (name: string, text: string) => writeFileSync(join(folder, name), text);

test("eosTokensOf: takes generation_config.json before config.json, one token or several", () => {
  expect(() => eosTokensOf(folder)).toThrow("no file there defines the token that ends a text");
  write("config.json", '{"eos_token_id": 7}');
  expect(eosTokensOf(folder)).toEqual([7]);
  write("generation_config.json", '{"eos_token_id": [5, 6]}');
  expect(eosTokensOf(folder)).toEqual([5, 6]);
  write("generation_config.json", "{}");
  expect(eosTokensOf(folder)).toEqual([7]);
  write("generation_config.json", "{");
  expect(() => eosTokensOf(folder)).toThrow("generation_config.json");
});
