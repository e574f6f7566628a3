// Where spans go and which are recorded: --otlp, and the environment variables that OpenTelemetry's specification names
// for every language. It reads no environment: that is passed in.

import { AppError } from "../../core/base/errors.ts";
import { SAMPLER_NAMES, type Sampler, samplerNamed } from "./context.ts";

export interface TracingSettings {
  /** Of the route that takes traces. */
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly timeoutMs: number;
  readonly serviceName: string;
  readonly resource: Readonly<Record<string, string>>;
  readonly sampler: Sampler;
}

export type Environment = Readonly<Record<string, string | undefined>>;

const TRACES_PATH = "/v1/traces";
const TIMEOUT_MS = 10_000;
const TIMEOUT_MS_MAX = 600_000;
const SERVICE = "foretoken";

/** `flag`: the value of --otlp; null: not given. Returns null: spans go nowhere. @throws AppError usage, invalid_config. */
export function tracingSettings(flag: string | null, env: Environment): TracingSettings | null {
  const url = endpointOf(flag, env);
  if (url === null) return null;
  const resource = pairsOf("OTEL_RESOURCE_ATTRIBUTES", env);
  return {
    url,
    headers: {
      ...pairsOf("OTEL_EXPORTER_OTLP_HEADERS", env),
      ...pairsOf("OTEL_EXPORTER_OTLP_TRACES_HEADERS", env),
    },
    timeoutMs: timeoutOf(env),
    serviceName: given("OTEL_SERVICE_NAME", env) ?? resource["service.name"] ?? SERVICE,
    resource,
    sampler: samplerOf(env),
  };
}

/** An empty variable counts as none, as the specification says. */
function given(name: string, env: Environment): string | null {
  const value = env[name]?.trim();
  return value === undefined || value === "" ? null : value;
}

function endpointOf(flag: string | null, env: Environment): string | null {
  if (flag !== null) return urlOf("--otlp", flag, true);
  if (given("OTEL_SDK_DISABLED", env)?.toLowerCase() === "true") return null;
  if (given("OTEL_TRACES_EXPORTER", env) === "none") return null;
  // The address of a collector that speaks another protocol is not meant for HTTP.
  const protocol =
    given("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", env) ?? given("OTEL_EXPORTER_OTLP_PROTOCOL", env);
  if (protocol === "grpc") return null;
  const own = given("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", env);
  if (own !== null) return urlOf("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", own, false);
  const base = given("OTEL_EXPORTER_OTLP_ENDPOINT", env);
  return base === null ? null : urlOf("OTEL_EXPORTER_OTLP_ENDPOINT", base, true);
}

function urlOf(name: string, text: string, isBase: boolean): string {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (url === null || (url.protocol !== "http:" && url.protocol !== "https:")) {
    throw new AppError(
      "usage",
      `${name} is "${text}"; it is the URL of a collector, http://HOST:4318`,
    );
  }
  if (!isBase || url.pathname.endsWith(TRACES_PATH)) return url.href;
  url.pathname = `${url.pathname.replace(/\/+$/, "")}${TRACES_PATH}`;
  return url.href;
}

function timeoutOf(env: Environment): number {
  const name = "OTEL_EXPORTER_OTLP_TIMEOUT";
  const text = given("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", env) ?? given(name, env);
  if (text === null) return TIMEOUT_MS;
  const ms = Number(text);
  if (ms >= 1 && ms <= TIMEOUT_MS_MAX) return ms;
  throw wrong(name, text, `it is a number of milliseconds between 1 and ${TIMEOUT_MS_MAX}`);
}

function samplerOf(env: Environment): Sampler {
  const name = given("OTEL_TRACES_SAMPLER", env) ?? "parentbased_always_on";
  const text = given("OTEL_TRACES_SAMPLER_ARG", env) ?? "1";
  const share = Number(text);
  if (!(share >= 0 && share <= 1)) {
    throw wrong("OTEL_TRACES_SAMPLER_ARG", text, "it is a share between 0 and 1");
  }
  const sampler = samplerNamed(name, share);
  if (sampler !== null) return sampler;
  throw wrong("OTEL_TRACES_SAMPLER", name, `it is one of ${SAMPLER_NAMES.join(", ")}`);
}

/** `key=value,key=value`, percent-encoded as in W3C Baggage. */
function pairsOf(name: string, env: Environment): Record<string, string> {
  const text = given(name, env);
  if (text === null) return {};
  const pairs = text.split(",").filter((pair) => pair.trim() !== "");
  return Object.fromEntries(
    pairs.map((pair) => {
      const at = pair.indexOf("=");
      if (at < 1) throw wrong(name, pair, "it is a list of key=value, with commas between them");
      return [pair.slice(0, at).trim(), decoded(pair.slice(at + 1).trim())];
    }),
  );
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function wrong(name: string, text: string, rule: string): AppError {
  return new AppError("invalid_config", `${name} is "${text}"; ${rule}`);
}
