// The slow, obvious twin of a core that learns: groups of sequences, their drafts (draft-twin.ts), and what verification
// feedback changes (assembly/draft/feedback.ts).

import {
  acceptedOf,
  blankSequence,
  CROSS_CONTEXT_MAX,
  DraftTwin,
  type Group,
  type Judged,
  lengthClass,
  type Parts,
  type Remembered,
  type Sequence,
  type TwinDraftQuery,
} from "./draft-twin.ts";
import { MixerTwin, oddsOf } from "./mixer-twin.ts";
import { CrossNgramsTwin, SequenceNgramsTwin } from "./ngram-twins.ts";
import { HISTORY, Substrings } from "./substrings.ts";
import type { TwinDraft } from "./suffix-twin.ts";

const PROMPT = 128;

/** Another response begins: the prompt's end counts once more for each but the first. */
function begin(group: Group): void {
  if (group.started > 0) group.texts.add(group.prompt, PROMPT);
  group.started += 1;
}

export class LearningTwin {
  readonly #parts: Parts = {
    mixer: new MixerTwin(),
    sequenceNgrams: new SequenceNgramsTwin(),
    crossNgrams: new CrossNgramsTwin(),
  };
  readonly #groups: Group[] = [];
  #step = 0;

  create(prompt: readonly number[]): void {
    const texts = new Substrings();
    for (let end = 1; end <= prompt.length; end += 1) texts.add(prompt.slice(0, end), PROMPT);
    const serial = this.#groups.length + 1;
    this.#groups.push({ serial, prompt, texts, sequences: [], started: 0 });
  }

  /** A whole response of an earlier epoch. */
  past(groupIndex: number, tokens: readonly number[]): void {
    const group = this.#groups[groupIndex] as Group;
    if (tokens.length > 0) begin(group);
    for (const end of tokens.keys()) {
      group.texts.add([...group.prompt, ...tokens.slice(0, end + 1)], HISTORY);
    }
  }

  append(groupIndex: number, index: number, tokens: readonly number[]): void {
    const group = this.#groups[groupIndex] as Group;
    while (group.sequences.length <= index) {
      group.sequences.push(blankSequence(group.serial, group.sequences.length));
    }
    const sequence = group.sequences[index] as Sequence;
    for (const token of tokens) {
      if (sequence.drafted) this.#feedback(group, sequence, token);
      if (sequence.output.length === 0) begin(group);
      sequence.output.push(token);
      group.texts.add([...group.prompt, ...sequence.output], index % 128);
    }
  }

  drafts(queries: readonly TwinDraftQuery[]): TwinDraft[] {
    this.#step += 1;
    return queries.map((query) => {
      const group = this.#groups[query.group] as Group;
      const sequence = group.sequences[query.sequence];
      const made = new DraftTwin(this.#parts, group, sequence, query, this.#step).make();
      if (sequence !== undefined) {
        sequence.draft = made;
        sequence.drafted = true;
        sequence.earlier = Math.min((acceptedOf(sequence) + 1) >> 1, 3);
        sequence.since = 0;
      }
      const { tokens, parents, probabilities } = made;
      return { tokens, parents, probabilities };
    });
  }

  #feedback(group: Group, sequence: Sequence, token: number): void {
    const { texts, prompt } = group;
    const text = [...prompt, ...sequence.output];
    const before = [text.at(-1) ?? 0, sequence.second, sequence.third];
    if (sequence.recovery !== null) {
      const next = [...sequence.recovery, token];
      sequence.recovery = texts.has(next) ? texts.longest(next) : null;
      sequence.agreed = Math.min(sequence.agreed + 1, 255);
    }
    if (sequence.draft !== null)
      this.#verified(texts, sequence, sequence.draft, before[0] ?? 0, token);
    sequence.since += 1;
    this.#parts.sequenceNgrams.update(sequence.key, before, token, text.length);
    const link = texts.suffixStates(text)[1] ?? [];
    if (texts.longest(link).length < CROSS_CONTEXT_MAX)
      this.#parts.crossNgrams.update(before, token);
    sequence.third = sequence.second;
    sequence.second = before[0] ?? 0;
  }

  #verified(
    texts: Substrings,
    sequence: Sequence,
    draft: Remembered,
    last: number,
    token: number,
  ): void {
    sequence.draft = null;
    if (draft.step !== this.#step) return;
    const parent = draft.reached;
    const before = parent < 0 ? last : (draft.tokens[parent] ?? 0);
    const judged = draft.judged.filter((one) => one.parent === parent);
    const odds = (one: Judged) =>
      oddsOf(this.#parts.mixer.probability(one.features, before, one.token));
    const all = draft.tree ? judged.reduce((sum, one) => sum + odds(one), 1) : 1;
    for (const one of judged) {
      const others = draft.tree ? Math.max(all - odds(one), 1) : 1;
      this.#parts.mixer.learn(one.features, [before, one.token], one.token === token, others);
    }
    const reached = draft.tokens.findIndex(
      (one, i) => one === token && draft.parents[i] === parent,
    );
    if (reached >= 0) {
      draft.reached = reached;
      sequence.draft = draft;
      return;
    }
    const next = draft.continuations.get(parent);
    if (next === undefined || next.token === token) return;
    if (sequence.recovery !== null && next.length <= sequence.agreed) return;
    sequence.recovery = texts.longest(next.state);
    sequence.agreed = 0;
    sequence.left = lengthClass(next.length);
  }
}
