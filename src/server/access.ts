// Decides which requests a browser may have sent here on behalf of a page that is not ours. A page can reach a server
// on loopback from any site (cross-site requests need no preflight if they look like a form's), and by rebinding its own
// name to 127.0.0.1. A browser cannot hide either: it sends Origin and Sec-Fetch-Site, and Host holds the page's name.
// Clients that are no browsers send neither of the first two. It checks the token of every client, too.

import { createHmac, timingSafeEqual } from "node:crypto";
import { AppError } from "../core/base/errors.ts";

export interface AccessOptions {
  readonly boundHost: string;
  readonly machineName: string;
  /** Token that every route requires, except open ones; pages under a foreign name do not have it. null: no token. */
  readonly apiToken: string | null;
  /** Further origins whose pages may use the server, and whose host names it answers to; "*": any. */
  readonly allowOrigins: readonly string[];
}

const ANY = "*";

const SHARED = {
  "access-control-allow-methods": "GET, POST, DELETE",
  "access-control-allow-headers":
    "authorization, content-type, x-api-key, x-request-id, x-foretoken-group, x-session-id",
  "access-control-expose-headers": "x-request-id, x-rollout-id",
  vary: "origin",
};

export class Access {
  readonly #options: AccessOptions;
  readonly #hosts: ReadonlySet<string>;

  constructor(options: AccessOptions) {
    this.#options = options;
    const sites = options.allowOrigins.map((site) =>
      URL.canParse(site) ? new URL(site).hostname : site,
    );
    const names = [options.boundHost, options.machineName, ...sites];
    this.#hosts = new Set(names.map((name) => hostNameOf(name) ?? name.toLowerCase()));
  }

  /** Refuses a foreign page's request. @throws AppError forbidden, naming the header, its value and the flag that allows it. */
  check({ method, path, headers }: { method: string; path: string; headers: Headers }): void {
    const host = headers.get("host");
    this.#checkHost(host);
    const origin = headers.get("origin");
    if (origin !== null) {
      // A proxy with TLS has another origin than the name that the client used (--allow-origin).
      const url = host === null ? "" : `http://${host}`;
      const own = URL.canParse(url) ? new URL(url).origin : null;
      if (origin !== own && !this.#isAllowed(origin)) {
        const fix = `allow it with --allow-origin ${shown(origin)}`;
        throw forbidden(`the Origin ${shown(origin)} is not this server's: ${fix}`);
      }
      return;
    }
    const site = headers.get("sec-fetch-site");
    if (site === null || site === "same-origin" || site === "none") return;
    // A link on another page that leads to ours: the other page sees nothing of the answer.
    const isVisit = headers.get("sec-fetch-mode") === "navigate" && method === "GET";
    if (isVisit && path === "/" && headers.get("sec-fetch-dest") === "document") return;
    const fix = "pages of other sites are served only with --allow-origin";
    throw forbidden(`Sec-Fetch-Site is ${shown(site)}: ${fix}`);
  }

  /** A token may stand in the query, as browsers set no headers on a socket. @throws AppError unauthorized. */
  authorize(headers: Headers, { pathname, searchParams }: URL): void {
    const { apiToken } = this.#options;
    if (apiToken === null) return;
    const key = apiKeyIn(headers) ?? searchParams.get("token") ?? "";
    const token = sessionKeyOf(key)?.token ?? key;
    if (isSame(token, apiToken)) return;
    if (pathname === "/metrics" && isSame(token, metricsToken(apiToken))) return;
    const message = "the API token is missing or wrong (Authorization: Bearer ...)";
    throw new AppError("unauthorized", message);
  }

  /** CORS headers that let pages of another origin read answers; null: they may not. */
  sharing(origin: string): Readonly<Record<string, string>> | null {
    return this.#isAllowed(origin) ? { "access-control-allow-origin": origin, ...SHARED } : null;
  }

  #isAllowed(origin: string): boolean {
    const { allowOrigins } = this.#options;
    return allowOrigins.includes(ANY) || allowOrigins.includes(origin);
  }

  /** Refuses requests under a foreign name, which may resolve to this machine; an address cannot be forged this way. */
  #checkHost(host: string | null): void {
    if (host === null || this.#options.apiToken !== null || this.#hosts.has(ANY)) return;
    const name = hostNameOf(host);
    const isAddress = name?.startsWith("[") || /^\d{1,3}(\.\d{1,3}){3}$/.test(name ?? "");
    if (name !== null && (isAddress || isLoopbackHost(name) || this.#hosts.has(name))) return;
    const fix = `allow it with --allow-origin http://${shown(name ?? host)}, or ask for a token (--api-token)`;
    throw forbidden(`the Host ${shown(host)} is not a name of this server: ${fix}`);
  }
}

/** Whether only this machine can connect to what is bound to `host`. */
export function isLoopbackHost(host: string): boolean {
  const name = hostNameOf(host) ?? host.toLowerCase();
  if (name === "localhost" || name.endsWith(".localhost") || name === "[::1]") return true;
  return /^127(\.\d{1,3}){3}$/.test(name);
}

function isSame(given: string, wanted: string): boolean {
  const one = Buffer.from(given);
  const other = Buffer.from(wanted);
  return one.length === other.length && timingSafeEqual(one, other);
}

/** The token of /metrics alone, which may stand where others read it: in a pod's annotations. `openssl dgst` makes it, too. */
function metricsToken(apiToken: string): string {
  return createHmac("sha256", apiToken).update("metrics").digest("hex");
}

/** The host as a browser would write it, without port and final dot; null: it is no host. */
function hostNameOf(host: string): string | null {
  if (/[/\\@?#\s]/.test(host)) return null;
  const isBare = !host.startsWith("[") && host.split(":").length > 2;
  const url = `http://${isBare ? `[${host}]` : host}`;
  return URL.canParse(url) ? new URL(url).hostname.replace(/\.$/, "") : null;
}

function forbidden(message: string): AppError {
  return new AppError("forbidden", message);
}

const SHOWN_MAX = 200;

function shown(value: string): string {
  return value.length <= SHOWN_MAX ? value : `${value.slice(0, SHOWN_MAX)}...`;
}

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
