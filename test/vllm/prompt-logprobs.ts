// Logprobs of prompts through the sidecar, against those that one of the servers answers itself.

import { expect, test } from "bun:test";
import type { LateBed } from "./bed.ts";

interface Answer {
  readonly choices: readonly { readonly prompt_logprobs: unknown; readonly token_ids: unknown }[];
}

export function promptLogprobTests(bed: LateBed): void {
  test("prompt logprobs: they are the server's, and the response is the same as without", async () => {
    const { fleet, prompts } = bed();
    for (const prompt of prompts.slice(0, 3)) {
      const body = { prompt, max_tokens: 40, temperature: 0, return_token_ids: true };
      const scored = { ...body, prompt_logprobs: 3 };
      const plain = (await fleet.plain(0).call("POST", "/v1/completions", scored)).body as Answer;
      const answer = await fleet.call("POST", "/v1/completions", scored);
      const { choices } = (await answer.json()) as Answer;
      expect(choices[0]?.prompt_logprobs).toEqual(plain.choices[0]?.prompt_logprobs);
      expect(choices[0]?.token_ids).toEqual(plain.choices[0]?.token_ids);
    }
  });
}
