// What is kept of a sequence beside its text: the layout of its record. Owns no data.

// A sequence's record: state of its whole text; of its last `depth` tokens; its last token; of its last
// draft (step.ts) the number of the step, where it begins, its length and the token of it that was
// reached plus one; and two words for each of its runs of states (node.ts). Those of whole texts follow
// each other along the text and so do those split off, but not the ones mixed with the others: apart,
// an append or a draft that goes along a text finds the next state in the same cache line.
export const SEQ_BYTES: usize = 64;
export const Q_LAST: usize = 0;
export const Q_TOP: usize = 4;
export const Q_TOKEN: usize = 8;
export const Q_DRAFT_STEP: usize = 12;
export const Q_DRAFT_AT: usize = 16;
export const Q_DRAFT_COUNT: usize = 20;
export const Q_DRAFT_REACHED: usize = 22;
export const Q_WHOLE: usize = 24;
export const Q_SPLIT: usize = 32;
// Kept for drafts (assembly/draft): the two tokens before the last; match recovery's state and how many tokens agree with
// it; whether the sequence is drafted for; the head of its last draft; the class of the context that was left for the
// recovery; tokens since the last draft, and about how many the draft before it gained.
export const Q_SECOND: usize = 40;
export const Q_THIRD: usize = 44;
export const Q_RECOVERY: usize = 48;
export const Q_AGREED: usize = 52;
export const Q_DRAFTED: usize = 53;
export const Q_DRAFT_HEAD: usize = 56;
export const Q_LEFT: usize = 60;
export const Q_SINCE: usize = 61;
export const Q_EARLIER: usize = 62;
