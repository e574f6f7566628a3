// The runs that one command makes: `--compare group,divided,seer:off` names policies, each with an
// optional way of drafting; without it there is one run.

import { AppError } from "../core/base/errors.ts";
import { DRAFT_MODES, type DraftMode } from "../core/draft/registry.ts";
import { defaultDraft, POLICY_NAMES, type PolicyName } from "../core/schedule/policies.ts";

export interface Run {
  /** As it was asked for: the key in the report. */
  readonly name: string;
  readonly policy: PolicyName;
  readonly draft: DraftMode;
}

const RUNS_MAX = 16;

/** @throws AppError `usage` naming the part that is wrong. */
export function parseCompare(text: string, draft: DraftMode | null): Run[] {
  const names = text.split(",");
  if (names.length > RUNS_MAX) throw wrong(`names ${names.length} runs; at most ${RUNS_MAX}`);
  if (new Set(names).size !== names.length) throw wrong(`is "${text}"; it names a run twice`);
  return names.map((name) => {
    const [policyText = "", draftText, ...rest] = name.split(":");
    const policy = POLICY_NAMES.find((known) => known === policyText);
    if (policy === undefined) {
      throw wrong(`names "${policyText}"; a policy is one of ${POLICY_NAMES.join(", ")}`);
    }
    if (draftText === undefined) return { name, policy, draft: draft ?? defaultDraft(policy) };
    const mode = DRAFT_MODES.find((known) => known === draftText);
    if (mode === undefined || rest.length > 0) {
      throw wrong(`names "${name}"; drafting is one of ${DRAFT_MODES.join(", ")}`);
    }
    return { name, policy, draft: mode };
  });
}

function wrong(problem: string): AppError {
  return new AppError("usage", `--compare ${problem}`);
}
