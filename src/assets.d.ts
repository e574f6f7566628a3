// Files that modules import: `type: "text"` gives their text, `type: "file"` a path to read. Imported, they become part
// of the compiled executable (scripts/compile.ts).

declare module "*.proto" {
  const text: string;
  // biome-ignore lint/style/noDefaultExport: what such an import gives.
  export default text;
}

declare module "*.c" {
  const text: string;
  // biome-ignore lint/style/noDefaultExport: what such an import gives.
  export default text;
}

declare module "*.css" {
  const text: string;
  // biome-ignore lint/style/noDefaultExport: what such an import gives.
  export default text;
}

/** Scripts of the page, and the chart library's. */
declare module "*.js" {
  const text: string;
  // biome-ignore lint/style/noDefaultExport: what such an import gives.
  export default text;
}

declare module "*.wasm" {
  const path: string;
  // biome-ignore lint/style/noDefaultExport: what such an import gives.
  export default path;
}
