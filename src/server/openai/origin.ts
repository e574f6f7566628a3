// Where a request belongs, as the client says in headers, fields and extra arguments: its group, its session, the salt
// of its KV, and the version of the weights that it expects. What is read from extra arguments is taken out of them, so
// that engines do not get it.

import * as v from "valibot";
import { apiKeyIn, sessionKeyOf } from "../access.ts";
import { invalid } from "../route.ts";
import { isNot, name } from "./fields.ts";

export interface Origin {
  /** The client's name for the group; null: the prompt decides. */
  readonly group: string | null;
  /** The conversation that the prompt is a turn of; null: none. */
  readonly session: string | null;
  /** Separates groups, KV and drafts, as it separates caches in vLLM; null: none. */
  readonly salt: string | null;
  /** The trainer's name for the weights; null: not given. */
  readonly version: string | null;
}

export const VERSION_FIELD = v.pipe(
  v.nullish(v.union([v.string(), v.number()], isNot("a text or a number"))),
  v.transform((value) => (typeof value === "number" ? String(value) : value)),
  name,
);

type ExtraField = "group_id" | "session_id" | "program_id" | "policy_version" | "weight_version";
type OriginFields = { readonly [K in ExtraField | "cache_salt"]?: string | null | undefined };

const KEY_FORM = "is not as SESSION:NAME;GROUP:NAME;TOKEN:TOKEN, without what is not there";

/**
 * Headers go before fields, fields before extra arguments, these before `sessionHeaders`, the trainers' own, and all
 * before an API key that names a session.
 * X-Session-ID: vllm-router's, SkyRL's trajectory, verifiers' and prime-rl's trace. `program_id`: ThunderAgent's and vllm-router's.
 */
export function originOf(
  headers: Headers,
  fields: OriginFields,
  extraArgs: Record<string, unknown>,
  sessionHeaders: readonly string[] = [],
): Origin {
  const given = (field: ExtraField): string | null => {
    const extra = textOf(field, extraArgs[field]);
    delete extraArgs[field];
    return fields[field] ?? extra;
  };
  const named = (header: string) => nameIn(header, headers.get(header));
  const own = () => sessionHeaders.map(named).find((name) => name !== null) ?? null;
  const apiKey = apiKeyIn(headers);
  const key = sessionKeyOf(apiKey);
  // Its turns would be of no session, and nobody would see it. It may hold a token, which no message shows.
  if (key === null && apiKey?.startsWith("SESSION:")) throw invalid("the API key", KEY_FORM);
  const keyName = (field: "session" | "group") => nameIn("the API key", key?.[field] ?? null);
  // Each is read, for it to be taken out.
  const [group, session, program] = [given("group_id"), given("session_id"), given("program_id")];
  const [policy, weights] = [given("policy_version"), given("weight_version")];
  return {
    group: named("X-Foretoken-Group") ?? group ?? keyName("group"),
    session: named("X-Session-ID") ?? session ?? program ?? own() ?? keyName("session"),
    salt: fields.cache_salt ?? null,
    version: policy ?? weights,
  };
}

function textOf(field: string, value: unknown): string | null {
  if (value === undefined || value === null) return null;
  if (typeof value === "string" || typeof value === "number") return nameIn(field, String(value));
  throw invalid(field, `is ${JSON.stringify(value)}, not a text`);
}

/** A name that came outside of the body's schema, and is held to the same bounds. */
function nameIn(field: string, value: string | null): string | null {
  const result = v.safeParse(name, value);
  if (!result.success) throw invalid(field, result.issues[0].message);
  return result.output ?? null;
}
