// Mooncake beside a vLLM for CPUs: the wheel, and the shared libraries of the system that it loads. Those that are not
// installed are taken out of Debian's packages and put where the wheel looks first, so that no root access is needed.

import { copyFileSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { attempt, type PythonEnv } from "./python-env.ts";

export const MOONCAKE_PACKAGE = "mooncake-transfer-engine-non-cuda==0.3.13.post1";

/** Shared libraries that the wheel needs and a small Debian lacks, and the packages that have them. */
const PACKAGES: Readonly<Record<string, string>> = {
  "libibverbs.so.1": "libibverbs1",
  "libnl-3.so.200": "libnl-3-200",
  "libnl-route-3.so.200": "libnl-route-3-200",
  "libnuma.so.1": "libnuma1",
};

/** Returns why it cannot be used; null: it can. */
export function installMooncake(env: PythonEnv, sitePackages: string): string | null {
  const problem = env.install(["--no-deps", MOONCAKE_PACKAGE]);
  if (problem !== null) return problem;
  for (const tried = new Set<string>(); ; ) {
    const message = attempt([env.python, "-c", "import mooncake.store"]);
    if (message === null) return null;
    const [, library = ""] =
      /ImportError: (\S+): cannot open shared object file/.exec(message) ?? [];
    const name = PACKAGES[library];
    if (name === undefined || tried.has(library)) return message;
    tried.add(library);
    const failure = addLibrary(sitePackages, { library, name });
    if (failure !== null) return `${library} is missing: apt-get install ${name} (${failure})`;
  }
}

/** Puts the library of a Debian package beside the wheel's own. */
function addLibrary(
  sitePackages: string,
  { library, name }: { library: string; name: string },
): string | null {
  const own = readdirSync(sitePackages).find((entry) => /^mooncake.*\.libs$/.test(entry));
  if (own === undefined) return "the wheel has no folder for libraries";
  const folder = mkdtempSync(join(tmpdir(), "foretoken-deb-"));
  try {
    // A machine whose package lists were deleted gets lists of its own here.
    const lists = ["-o", `Dir::State::lists=${folder}`, "-o", `Dir::Cache=${folder}`];
    const failure =
      attempt(["apt-get", "download", name], folder) &&
      (attempt(["apt-get", ...lists, "update"], folder) ??
        attempt(["apt-get", ...lists, "download", name], folder));
    if (failure !== null) return failure;
    const file = readdirSync(folder).find((entry) => entry.endsWith(".deb")) ?? "";
    const unpacked = join(folder, "unpacked");
    const problem = attempt(["dpkg-deb", "-x", join(folder, file), unpacked]);
    if (problem !== null) return problem;
    const entries = readdirSync(unpacked, { recursive: true, encoding: "utf8" });
    const found = entries.find((entry) => basename(entry) === library);
    if (found === undefined) return `${name} has no ${library}`;
    copyFileSync(join(unpacked, found), join(sitePackages, own, library));
    return null;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
