// An API key that names a session, for agents whose only setting is a key: `SESSION:NAME`, where NAME may hold colons,
// then `;GROUP:NAME` and, if the server asks for a token, `;TOKEN:TOKEN`.

export interface SessionKey {
  readonly session: string;
  /** The client's name for the group; null: it gave none. */
  readonly group: string | null;
  readonly token: string | null;
}

const FORM = /^SESSION:(?<session>[^;]+)(?:;GROUP:(?<group>[^;]+))?(?:;TOKEN:(?<token>.+))?$/;

/** The key that a client sends: OpenAI's clients as a bearer token, Anthropic's in a header. null: none. */
export function apiKeyIn(headers: Headers): string | null {
  const bearer = headers.get("authorization")?.replace(/^Bearer /i, "");
  return bearer ?? headers.get("x-api-key");
}

/** The names in an API key; null: the key names no session. */
export function sessionKeyOf(key: string | null): SessionKey | null {
  const { session, group = null, token = null } = FORM.exec(key ?? "")?.groups ?? {};
  return session === undefined ? null : { session, group, token };
}
