// The ABI of sample.wasm, the embedded engine's sampling kernel: re-exports only.

export { memoryBytes, resultOffset, rowLength, rowOffset, sample } from "./draw";
export { filter } from "./filter";
export { top, topLogprobsOffset, topTokensOffset } from "./top";
