import { afterAll, expect, test } from "bun:test";
import { PlaneFixture } from "../../test/golden/requests/plane-fixture.ts";

const fixture = new PlaneFixture();
afterAll(() => fixture.close());

const TOP_K = 4;

async function post(body: object): Promise<Response> {
  const sent = fetch(`${fixture.url}/skyrl/v1/generate`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ token_ids: [1, 2], ...body }),
  });
  return await fixture.until(sent);
}

test("skyrl: the packed support begins with its data and holds each token in its row", async () => {
  const sampling = { max_tokens: 9, ignore_eos: true, top_k: TOP_K };
  const answer = await post({ sampling_params: sampling, return_sample_support: true });
  expect(answer.status).toBe(200);
  const text = await answer.text();
  expect(text).toContain('"rollout_sample_support":{"data":"');
  const [choice] = JSON.parse(text).choices;
  const { data, shape, dtype } = choice.rollout_sample_support;
  expect({ shape, dtype }).toEqual({ shape: [choice.token_ids.length, TOP_K], dtype: "int32" });
  expect(choice.logprobs.content).toHaveLength(choice.token_ids.length);
  const bytes = Buffer.from(data, "base64");
  expect(bytes).toHaveLength(choice.token_ids.length * TOP_K * 4);
  for (const [index, token] of choice.token_ids.entries()) {
    const row = Array.from({ length: TOP_K }, (_, k) => bytes.readInt32LE((index * TOP_K + k) * 4));
    expect(row).toContain(token);
    // Padding comes last.
    expect(row.slice(row.indexOf(-1)).every((id) => id === -1) || !row.includes(-1)).toBe(true);
  }
});
