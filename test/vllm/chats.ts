// Chats through the sidecar against vLLM asked directly: TRL's 41 templates, sent with each request, times 16 chats.

import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { membersOf, objectOf } from "../../src/proto/json.ts";
import { fieldOf } from "../../src/server/route.ts";
import type { LateBed } from "./bed.ts";
import { ROOT } from "./fleet.ts";

/** Flags of a server that takes templates of requests. */
export const CHAT_FLAGS = ["--trust-request-chat-template"];

const GOLDEN = join(ROOT, "test", "golden", "chats");
const RENDER = "/v1/chat/completions/render";

/** null: refused. */
type Tokens = readonly number[] | null;

async function asked(url: string, path: string, body: string): Promise<[Tokens, string]> {
  const headers = { "content-type": "application/json" };
  const response = await fetch(url + path, { method: "POST", body, headers });
  const text = await response.text();
  if (response.status >= 500) throw new Error(`${url}${path}: ${response.status} ${text}`);
  const answer: unknown = JSON.parse(text);
  return [(fieldOf(answer, "token_ids") ?? fieldOf(answer, "tokens")) as Tokens, text];
}

/** The prompt by the server's own routes; one that is longer than the context is only counted. */
async function directly(url: string, chat: ReadonlyMap<string, string>): Promise<Tokens> {
  const [tokens, text] = await asked(url, RENDER, objectOf(chat));
  if (tokens !== null || !text.includes("context length")) return tokens;
  const counted = new Map(chat);
  const documents = chat.get("documents");
  if (documents !== undefined) {
    const variables = membersOf(chat.get("chat_template_kwargs") ?? "{}");
    counted.set("chat_template_kwargs", objectOf(variables.set("documents", documents)));
  }
  return (await asked(url, "/tokenize", objectOf(counted)))[0];
}

export function chatTests(bed: LateBed): void {
  test("chats: 41 templates times 16 chats are the tokens of vLLM asked directly", async () => {
    const { fleet } = bed();
    const golden = JSON.parse(readFileSync(join(GOLDEN, "golden.json"), "utf8"));
    const chats = membersOf(readFileSync(join(GOLDEN, "chats.json"), "utf8"));
    const server = fleet.servers[0]?.url ?? "";
    const wrong: string[] = [];
    let [right, refused] = [0, 0];
    for (const [template, { source }] of Object.entries<{ source: string }>(golden)) {
      for (const [name, text] of chats) {
        const chat = membersOf(text).set("chat_template", JSON.stringify(source));
        const expected = await directly(server, chat);
        chat.delete("tool_choice");
        const [tokens] = await asked(fleet.url, "/tokenize", objectOf(chat));
        if (Bun.deepEquals(tokens, expected)) right += 1;
        else wrong.push(`${template} x ${name}`);
        if (expected === null) refused += 1;
      }
    }
    console.log(`chats: ${right} of 656 as vLLM's, ${refused} of them refused`);
    expect(wrong).toEqual([]);
    expect(right).toBe(656);
  });

  test("chats: prompts of completions are those that the server makes, plain and with tools", async () => {
    const { fleet } = bed();
    const chats = membersOf(readFileSync(join(GOLDEN, "chats.json"), "utf8"));
    const server = fleet.servers[0]?.url ?? "";
    for (const [name, text] of chats) {
      const chat = membersOf(text);
      const expected = await directly(server, chat);
      for (const [field, value] of [
        ["max_tokens", "1"],
        ["return_token_ids", "true"],
      ] as const) {
        chat.set(field, value);
      }
      const answer = (await asked(fleet.url, "/v1/chat/completions", objectOf(chat)))[1];
      expect([name, fieldOf(JSON.parse(answer), "prompt_token_ids")]).toEqual([name, expected]);
    }
    expect(await fleet.metric("foretoken_chat_render_seconds_count", "sidecar")).toBeGreaterThan(0);
    const seconds = await fleet.metric("foretoken_chat_render_seconds_sum", "sidecar");
    const count = await fleet.metric("foretoken_chat_render_seconds_count", "sidecar");
    console.log(`chats: ${count} prompts, ${((1000 * seconds) / count).toFixed(2)} ms each`);
  });
}
