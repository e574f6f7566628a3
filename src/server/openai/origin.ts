// Where a request belongs, as the client says in headers, fields and extra arguments: its group, its session, the salt
// of its KV, and the version of the weights that it expects. What is read from extra arguments is taken out of them, so
// that engines do not get it.

import * as v from "valibot";
import { invalid } from "../route.ts";
import { isNot, name } from "./fields.ts";

export interface Origin {
  /** null: the prompt decides. */
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

const EXTRA_FIELDS = [
  "group_id",
  "session_id",
  "program_id",
  "policy_version",
  "weight_version",
] as const;
type OriginFields = {
  readonly [K in (typeof EXTRA_FIELDS)[number] | "cache_salt"]?: string | null | undefined;
};

/**
 * Headers go before fields, fields before extra arguments, and these before `sessionHeaders`, the trainers' own.
 * X-Session-ID: vllm-router's, SkyRL's trajectory, verifiers' and prime-rl's trace. `program_id`: ThunderAgent's and vllm-router's.
 */
export function originOf(
  headers: Headers,
  fields: OriginFields,
  extraArgs: Record<string, unknown>,
  sessionHeaders: readonly string[] = [],
): Origin {
  const taken = (field: string): string | null => {
    const value = extraArgs[field];
    delete extraArgs[field];
    return textOf(field, value);
  };
  const [group, session, program, policy, weights] = EXTRA_FIELDS.map(taken);
  const context = contextIn(extraArgs);
  return {
    group:
      named("X-Foretoken-Group", headers.get("x-foretoken-group")) ??
      fields.group_id ??
      group ??
      null,
    session:
      named("X-Session-ID", headers.get("x-session-id")) ??
      fields.session_id ??
      fields.program_id ??
      session ??
      program ??
      context ??
      sessionHeaders.reduce<string | null>(
        (found, header) => found ?? named(header, headers.get(header)),
        null,
      ),
    salt: fields.cache_salt ?? null,
    version: fields.policy_version ?? fields.weight_version ?? policy ?? weights ?? null,
  };
}

/** The session in `agentic_context`: a text, or an object (also as JSON) that names it in one of these fields. */
const CONTEXT_FIELDS = [
  "session_id",
  "program_id",
  "trajectory_id",
  "context_id",
  "conversation_id",
  "id",
];

function contextIn(extraArgs: Record<string, unknown>): string | null {
  const given = extraArgs.agentic_context;
  delete extraArgs.agentic_context;
  const context = typeof given === "string" && given.startsWith("{") ? parsed(given) : given;
  if (typeof context !== "object" || context === null) return textOf("agentic_context", context);
  for (const field of CONTEXT_FIELDS) {
    const value: unknown = Reflect.get(context, field);
    if (value !== undefined && value !== null) return textOf(`agentic_context.${field}`, value);
  }
  throw invalid("agentic_context", `names no session: it has none of ${CONTEXT_FIELDS.join(", ")}`);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function textOf(field: string, value: unknown): string | null {
  if (value === undefined || value === null) return null;
  if (typeof value === "string" || typeof value === "number") return named(field, String(value));
  throw invalid(field, `is ${JSON.stringify(value)}, not a text`);
}

/** A name that came outside of the body's schema, and is held to the same bounds. */
function named(field: string, value: string | null): string | null {
  const result = v.safeParse(name, value);
  if (!result.success) throw invalid(field, result.issues[0].message);
  return result.output ?? null;
}
