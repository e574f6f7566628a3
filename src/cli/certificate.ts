// --tls-cert and --tls-key: reads both files and checks that they belong together, so that what is wrong with them is an
// error of the start that names the file, and no failed handshake of a client.

import { createPrivateKey, type KeyObject, X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import { AppError, errorText } from "../core/base/errors.ts";
import type { Certificate } from "../server/http.ts";
import type { Log } from "./log.ts";

/** null: neither is given. @throws AppError usage: one is; invalid_config: a file is not what it should be. */
export function readCertificate(
  { tlsCert, tlsKey }: { readonly tlsCert: string | null; readonly tlsKey: string | null },
  { log, nowMs }: { readonly log: Log; readonly nowMs: number },
): Certificate | null {
  if (tlsCert === null && tlsKey === null) return null;
  if (tlsCert === null) throw new AppError("usage", "--tls-key is given without --tls-cert");
  if (tlsKey === null) throw new AppError("usage", "--tls-cert is given without --tls-key");
  const cert = read("--tls-cert", tlsCert);
  const key = read("--tls-key", tlsKey);
  const first = parsed("--tls-cert", tlsCert, () => new X509Certificate(cert));
  const secret = parsed("--tls-key", tlsKey, (): KeyObject => createPrivateKey(key));
  if (!first.checkPrivateKey(secret)) {
    const message = `--tls-key ${tlsKey} is not the key of the certificate in --tls-cert ${tlsCert}`;
    throw new AppError("invalid_config", message);
  }
  const [from, to] = [Date.parse(first.validFrom), Date.parse(first.validTo)];
  if (nowMs < from || nowMs > to) {
    const reason = `the certificate is valid from ${first.validFrom} to ${first.validTo}`;
    log("warn", "certificate", { file: tlsCert, reason });
  }
  return { cert, key };
}

function read(flag: string, path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (cause) {
    const message = `${flag} ${path} cannot be read: ${errorText(cause)}`;
    throw new AppError("invalid_config", message, { cause });
  }
}

function parsed<T>(flag: string, path: string, parse: () => T): T {
  try {
    return parse();
  } catch (cause) {
    const what = flag === "--tls-cert" ? "no certificate" : "no private key without a passphrase";
    const message = `${flag} ${path} holds ${what} in PEM: ${errorText(cause)}`;
    throw new AppError("invalid_config", message, { cause });
  }
}
