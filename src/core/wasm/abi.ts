// Generated from assembly/abi.ts by scripts/build-core.ts; never edited by hand. The host compares
// ABI_VERSION with the core it has loaded.

export const ABI_VERSION = 6;
export const STATUS_OK = 0;
export const STATUS_FULL = -1;
export const STATUS_INVALID = -2;
export const STATUS_ABSENT = -3;
export const STATUS_DUPLICATE = -4;
export const DRAFT_TOKENS_MAX = 32;
export const TREE_TOKENS_MAX = 62;
export const SEQUENCES_MAX = 4096;
export const GROUP_TOKENS_MAX = 16777215;
export const CONTEXT_TOKENS_DEFAULT = 64;
export const APPEND_HEADER_WORDS = 3;
export const DRAFT_WORDS = 6;
export const DRAFT_FLAG_TREE = 1;
export const DRAFT_FLAG_TABLE = 2;
export const TABLE_AREA_WORDS = 1024;
export const TABLE_ROW_WORDS = 64;
export const TABLE_HEAD_WORDS = 4;
export const TABLE_NODES = 60;
export const TABLE_TOKEN_BITS = 21;
export const TABLE_PARENT_BITS = 6;
export const FOLLOWERS_BITS = 23;
export const FOLLOWERS_WORDS = 8388608;
export const TABLE_STEP_WORDS = 6;
export const FIGURES_WORDS = 6;
