// The native peer of the draft core, arctic-inference: where it is, how one gets it. Optional: a bench that compares with
// it does without where it is not installed.

/** Whether this Python has the peer. */
export function hasPeer(python: string): boolean {
  const probe = [python, "-c", "import arctic_inference.suffix_decoding"];
  try {
    return Bun.spawnSync(probe, { stdout: "ignore", stderr: "ignore" }).exitCode === 0;
  } catch {
    return false;
  }
}

/** The message if Python lacks it. */
export function peerMissing(python: string): string {
  return [
    `${python} cannot import arctic_inference; to install it without a GPU:`,
    "  python3 -m venv peer && peer/bin/pip install numpy",
    "  peer/bin/pip install --no-deps arctic-inference==0.1.1",
    "and name it: --python peer/bin/python",
  ].join("\n");
}
