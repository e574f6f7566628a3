// Exit statuses of the tool.

export const EXIT_FAILED = 1;
export const EXIT_USAGE = 2;
/** 128 + SIGINT, as shells report it. */
export const EXIT_INTERRUPTED = 130;
