import { expect, test } from "bun:test";
import { EOS, TinyText } from "../../../test/golden/requests/tiny-text.ts";
import { NO_STOPS } from "../../../test/suite/followed-job.ts";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { groupId, weightEpoch, weightsId, workerId } from "../../core/base/ids.ts";
import { RequestBuffer } from "../../core/request/buffer.ts";
import { drawKey } from "../../core/request/request.ts";
import { Output } from "./output.ts";
import type { StopRules } from "./sampling-fields.ts";

const STOP = 999;
function made(rules: Partial<StopRules> = {}) {
  const buffer = new RequestBuffer();
  const group = buffer.open(groupId("g"), Int32Array.of(1));
  const sampling = samplingOf({ seed: 1, tokensMax: 100, stopTokenIds: [EOS, STOP] });
  const draw = drawKey(1, "g", 0);
  const request = buffer.join(group, { sampling, draw, divisible: true, priority: 0 });
  const stops = { ...NO_STOPS, tokens: new Set([EOS, STOP]), ...rules };
  let ends = 0;
  const output = new Output({
    index: 0,
    request,
    reporting: request,
    stops,
    detokenizer: () => new TinyText().detokenizer({ skipSpecial: stops.skipSpecial }),
    stopped: () => {
      ends += 1;
    },
  });
  const { response } = request;
  const add = (...tokens: number[]) => {
    response.append(response.length, Int32Array.from(tokens), new Float32Array(tokens.length));
    output.advance();
  };
  const finish = (reason: "stop" | "length" | "abort") => {
    response.finish = reason;
    output.advance();
  };
  const text = () => output.pieces.join("");
  return { output, request, response, add, finish, text, ends: () => ends };
}

test.each([
  ["the EOS counts as a token, is no text, and is not named", {}, [97, 98, EOS], [3, null, "ab"]],
  ["another stop token is named as the reason", {}, [97, STOP], [2, STOP, "a"]],
  ["a stop token stays in the text on demand", { keepStop: true }, [97, STOP], [2, STOP, "a 999"]],
  [
    "a stop token is the reason, even where its text is a stop string",
    { strings: ["eo"], keepStop: true, skipSpecial: false },
    [97, EOS],
    [2, null, "a<eos>"],
  ],
] as const)("output: %s", (_, rules, tokens, [count, reason, written]) => {
  const { output, add, finish, text } = made(rules);
  add(...tokens);
  finish("stop");
  expect([output.finish, output.tokens, output.stopReason]).toEqual(["stop", count, reason]);
  expect(text()).toBe(written);
});

test("output: a stop string over two tokens ends the response, and later tokens do not count", () => {
  const { output, add, text, ends, response } = made({ strings: ["bc"] });
  add(97, 98);
  expect([output.finish, ends()]).toEqual([null, 0]);
  add(99, 100, 101);
  expect([output.finish, output.stopReason, output.tokens, ends()]).toEqual(["stop", "bc", 3, 1]);
  expect([text(), response.length]).toEqual(["a", 5]);
});

test("output: weight spans merge chunks of one version and end where the text was cut", () => {
  const { output, response, add } = made({ strings: ["e"] });
  const chunk = (epoch: number, ...tokens: number[]) => {
    response.openChunk(workerId(0), weightEpoch(epoch));
    add(...tokens);
  };
  chunk(1, 97, 98);
  chunk(1, 99);
  chunk(1);
  chunk(2, 100, 101, 102);
  output.advance();
  expect(output.weightSpans((epoch) => `v${epoch}`)).toEqual([
    { version: "v1", start: 0, end: 3 },
    { version: "v2", start: 3, end: 5 },
  ]);
});

test("output: engines of one version with other weights have spans of their own", () => {
  const { output, response, add } = made();
  const f16 = weightsId("f16-1");
  const q8 = weightsId("q8_0-2");
  for (const weights of [f16, f16, q8, null]) {
    response.openChunk(workerId(0), weightEpoch(1), weights);
    add(97);
  }
  output.advance();
  expect(output.weightSpans(() => "v")).toEqual([
    { version: "v", start: 0, end: 2, weights: f16 },
    { version: "v", start: 2, end: 3, weights: q8 },
    { version: "v", start: 3, end: 4 },
  ]);
});
