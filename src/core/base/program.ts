// Whether this program is a compiled executable, and the argument that starts it as its own helper process.

/** Whether this is a compiled executable (scripts/compile.ts): no other program can open its modules. */
export const IS_COMPILED = import.meta.dir.startsWith("/$bunfs/");

/** The first argument of the process that reads weights for one that serves (src/engines/llama/weights-child.ts). */
export const WEIGHTS_CHILD = "weights-child";
