// The file system as the SSD tier sees it: whole files under one directory that belongs to one pool.
// Implemented on a real disk in src/worker/tier-files.ts.

/**
 * Paths are relative, with "/" between names; folders appear when a file needs them. Every method
 * rejects when the operation failed; what is left behind then is a temporary file at most.
 */
export interface TierFiles {
  /** Creates the file, or replaces it, with all of `bytes`. */
  write(path: string, bytes: ArrayBuffer): Promise<void>;
  /** Atomic: `to` is never seen in part. Replaces `to`. */
  rename(from: string, to: string): Promise<void>;
  /** The whole file as a buffer of its own; null when it is not `bytes` long. Rejects when it is not there. */
  read(path: string, bytes: number): Promise<ArrayBuffer | null>;
  /** Removes a file. One that is not there is no error. */
  remove(path: string): Promise<void>;
  /** Removes a folder and all in it. One that is not there is no error. */
  removeFolder(path: string): Promise<void>;
  /** Removes the pool's directory, and everything in it. The files cannot be used afterwards. */
  removeAll(): Promise<void>;
}
