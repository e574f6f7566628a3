import { expect, test } from "bun:test";
import { speedupSentence } from "./speedup.ts";

test("speedup: the factors multiply to the whole; drafts that cost time count as 1", () => {
  const group = { busy_s: 15, draft_saved_s: 0 };
  const sentence = speedupSentence(["group", group], ["seer", { busy_s: 10, draft_saved_s: 6 }], {
    speedup: 2,
  });
  expect(sentence).toBe(
    "seer finished 2.00 times as fast as group: 1.25 from balance and KV kept, 1.60 from drafts",
  );
  const none = speedupSentence(["group", group], ["divided", group], { speedup: 1.5 });
  expect(none).toBe("divided finished 1.50 times as fast as group: 1.50 from balance and KV kept");
  const busy = speedupSentence(["group", group], ["divided", group], {
    speedup: 1.5,
    isEngineTime: true,
  });
  expect(busy).toStartWith("By engine time divided finished 1.50 times as fast as group: ");
  const costly = speedupSentence(["group", group], ["seer", { busy_s: 9, draft_saved_s: -1 }], {
    speedup: 1.2,
  });
  expect(costly).toContain("1.20 from balance and KV kept, 1.00 from drafts");
});
