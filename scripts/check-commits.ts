// Checks the form of commit subjects (CONTRIBUTING.md): `folder: imperative`, at most 72 characters. Commits up to
// BASE are older than the rule.

const BASE = "336420f";
const SUBJECT_MAX = 72;
const FORM = /^[a-z0-9][\w./, -]*: \S/;

function git(...args: string[]): string | null {
  const { exitCode, stdout } = Bun.spawnSync(["git", ...args], { stderr: "ignore" });
  return exitCode === 0 ? stdout.toString().trim() : null;
}

const isBaseKnown = git("merge-base", "--is-ancestor", BASE, "HEAD") !== null;
const subjects = git("log", "--no-merges", "--format=%h %s", isBaseKnown ? `${BASE}..HEAD` : "-1");
const problems: string[] = [];
for (const line of (subjects ?? "").split("\n").filter((text) => text !== "")) {
  const [hash, ...words] = line.split(" ");
  const subject = words.join(" ");
  if (subject.length > SUBJECT_MAX) {
    problems.push(
      `${hash}: the subject has ${subject.length} characters, not ${SUBJECT_MAX} at most`,
    );
  }
  if (!FORM.test(subject)) problems.push(`${hash}: "${subject}" is not "folder: imperative"`);
}
for (const problem of problems) console.error(`commit ${problem}`);
process.exit(problems.length === 0 ? 0 : 1);
