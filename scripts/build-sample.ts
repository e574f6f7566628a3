// Compiles assembly/sample to build/sample.wasm, the embedded engine's sampling kernel. It is apart from
// core.wasm because it needs SIMD and imports a memory that the host sizes by the vocabulary.

import asc from "assemblyscript/asc";

/** Throws with the compiler's output when the kernel does not compile. */
export async function buildSample(): Promise<void> {
  const { error, stderr } = await asc.main([
    "assembly/sample/index.ts",
    "--outFile=build/sample.wasm",
    "--optimizeLevel=3",
    "--runtime=stub",
    "--enable=simd",
    "--importMemory",
    "--initialMemory=1",
    "--noExportMemory",
    "--use=abort=",
  ]);
  if (error) throw new Error(`sample.wasm: ${stderr.toString()}`, { cause: error });
}

if (import.meta.main) await buildSample();
