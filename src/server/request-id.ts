// The id of an HTTP request: the client's own, where it is one that can stand in a header and a line of a log.

const SANE = /^[\x21-\x7e]{1,128}$/;

export function requestIdOf(headers: Headers): string {
  const given = headers.get("x-request-id");
  return given !== null && SANE.test(given) ? given : crypto.randomUUID();
}
