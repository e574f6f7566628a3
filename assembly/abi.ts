// The contract between the core and its hosts: the version, status codes and record layouts.
// This file is the source; scripts/build-core.ts writes the TypeScript copy (src/core/wasm/abi.ts) from
// it. It holds one `export const NAME: i32 = NUMBER;` a line and nothing else.

// Raised with every change of an exported signature, a record layout or a constant below.
export const ABI_VERSION: i32 = 6;

// Results are >= 0; these are the errors.
export const STATUS_OK: i32 = 0;
export const STATUS_FULL: i32 = -1;
export const STATUS_INVALID: i32 = -2;
export const STATUS_ABSENT: i32 = -3;
export const STATUS_DUPLICATE: i32 = -4;

// Bounds. A tree has more tokens than a path, but no path in it is longer.
export const DRAFT_TOKENS_MAX: i32 = 32;
export const TREE_TOKENS_MAX: i32 = 62;
export const SEQUENCES_MAX: i32 = 4096;
export const GROUP_TOKENS_MAX: i32 = 16777215;
export const CONTEXT_TOKENS_DEFAULT: i32 = 64;

// An append record in the input area: words group, sequence, count, then `count` tokens.
export const APPEND_HEADER_WORDS: i32 = 3;

// A draft record in the input area, after the append records: words group, sequence, tokensMax,
// flags, probabilityMin (f32 bits), weight (f32 bits).
export const DRAFT_WORDS: i32 = 6;
export const DRAFT_FLAG_TREE: i32 = 1;
export const DRAFT_FLAG_TABLE: i32 = 2;

// A device's tables (tables.ts): words of the area before the rows, of a row, and of it before its nodes; bits of a token
// and of its parent; words of the followers; words of a request's record in a step.
export const TABLE_AREA_WORDS: i32 = 1024;
export const TABLE_ROW_WORDS: i32 = 64;
export const TABLE_HEAD_WORDS: i32 = 4;
export const TABLE_NODES: i32 = 60;
export const TABLE_TOKEN_BITS: i32 = 21;
export const TABLE_PARENT_BITS: i32 = 6;
export const FOLLOWERS_BITS: i32 = 23;
export const FOLLOWERS_WORDS: i32 = 8388608;
export const TABLE_STEP_WORDS: i32 = 6;

// The words of a group's figures as `group_figures` writes them.
export const FIGURES_WORDS: i32 = 6;
