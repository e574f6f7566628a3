// Options of earlier releases that are gone, each with what to use instead: whoever still gives one, as a flag, in the
// environment or in a configuration file, gets an error. An entry stays for one release.

const FIXED = "its bound is fixed";
const PROXY = "a reverse proxy in front of the server does this";

const REMOVED: Readonly<Record<string, string>> = {
  "--allow-host": "--allow-origin names the site under which the server is reached",
  "--batch": "use --engine-steps REQUESTS,MS,US",
  "--body-timeout-s": FIXED,
  "--budget": "at most 16 tokens are drafted in one step",
  "--completed-mb": FIXED,
  "--draft-budget": "drafts are always verified if that is faster at the measured step times",
  "--drafted-per-step": "the table has what each drafter drafts a step beside what is accepted",
  "--drafter": "all three are replayed and compared",
  "--encode-timeout-s": FIXED,
  "--group-memory-mb": FIXED,
  "--harmless-rpc":
    "every method of /collective_rpc that is not known counts as a change of the weights",
  "--history-file": "--journal DIR keeps the history too",
  "--iterations": "--journal DIR keeps the iterations too",
  "--limit-groups": "use --limit",
  "--log-level": "use --log text:LEVEL or json:LEVEL",
  "--max-bodies-mb": FIXED,
  "--max-body-mb": "its bound is fixed at 32 MiB: send fewer prompts in one request",
  "--max-connections": FIXED,
  "--max-frame-kb": FIXED,
  "--max-groups": FIXED,
  "--max-model-len": "--kv-tokens bounds the requests of embedded engines",
  "--max-prompt-characters": FIXED,
  "--max-requests": FIXED,
  "--memory-mb": FIXED,
  "--parent": "set the environment variable FORETOKEN_PARENT",
  "--pool-dir": "the KV pool of a server is in the system's temporary directory (TMPDIR)",
  "--pool-disk-mb": "the SSD tier of the KV pool takes 4 times --pool-memory-mb",
  "--pool-memory-mb":
    "the KV pool of a server takes a sixteenth of the machine's DRAM, at least 256 MB",
  "--probability-min": "tokens that are less likely than 0.1 are not drafted",
  "--read-token": PROXY,
  "--html": "--report FILE.json writes the page beside it, as FILE.html",
  "--retry-grace-s": FIXED,
  "--row-us": "use --engine-steps REQUESTS,MS,US",
  "--session-mb": FIXED,
  "--session-s": FIXED,
  "--stateless-arg": "requests with unknown extra arguments are not divided",
  "--step-ms": "use --engine-steps REQUESTS,MS,US",
  "--tls-cert": PROXY,
  "--tls-key": PROXY,
  "--window-tokens": FIXED,
};

/** The message about a flag that was removed; null: there never was such a flag. */
export function removedFlag(flag: string): string | null {
  const instead = Object.hasOwn(REMOVED, flag) ? REMOVED[flag] : undefined;
  return instead === undefined ? null : `${flag} is gone: ${instead}`;
}

/** The message of `removedFlag`, for the first environment variable that sets a removed option. */
export function removedVariable(
  env: Readonly<Record<string, string | undefined>>,
  isKnown: (flag: string) => boolean,
): string | null {
  for (const [flag, instead] of Object.entries(REMOVED)) {
    const name = `FORETOKEN_${flag.slice(2).replaceAll("-", "_").toUpperCase()}`;
    // The number of the process to end with is no option, and has this name.
    if (env[name] === undefined || isKnown(flag) || flag === "--parent") continue;
    return `${name} (${flag}) is gone: ${instead}`;
  }
  return null;
}
