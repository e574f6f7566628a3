import { expect, test } from "bun:test";
import { GOLDEN_NAMES, goldenFile, normal } from "./golden.ts";
import { PlaneFixture } from "./plane-fixture.ts";

for (const name of GOLDEN_NAMES) {
  test(`${name}: gets the same answers, field by field`, async () => {
    const fixture = new PlaneFixture();
    try {
      for (const { request, response } of goldenFile(name).exchanges) {
        const { method, path, headers, body } = request;
        const init = body === null ? {} : { body: JSON.stringify(body) };
        const sent = fetch(fixture.url + path, {
          method,
          headers: { "content-type": "application/json", ...headers },
          ...init,
        });
        const answer = await fixture.until(sent);
        const seen = normal(await answer.text(), fixture.url);
        expect({ path, status: answer.status, body: seen }).toEqual({ path, ...response });
      }
    } finally {
      await fixture.close();
    }
  });
}
