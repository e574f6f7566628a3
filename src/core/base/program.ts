// What this program is, and the argument by which it becomes a helper of itself.

/**
 * A compiled executable (scripts/compile.ts): its modules are in a file system that only the executable has, and no
 * other program can open them.
 */
export const IS_COMPILED = import.meta.dir.startsWith("/$bunfs/");

/** The first argument of the process that reads weights for one that serves (src/engines/llama/weights-child.ts). */
export const WEIGHTS_CHILD = "weights-child";
