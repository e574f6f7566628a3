// The file system as the SSD tier sees it: whole files under one directory that belongs to one pool.
// Implemented on a real disk in src/host/tier-files.ts.

/**
 * Files in the pool's directory, by name. The directory is created with the first file. Every method rejects when the
 * operation failed, and leaves at most a temporary file.
 */
export interface TierFiles {
  /** Creates the file, or replaces it, with all of `bytes`. */
  write(name: string, bytes: ArrayBuffer): Promise<void>;
  /** Atomic: `to` is never seen in part. Replaces `to`. */
  rename(from: string, to: string): Promise<void>;
  /** The whole file as a buffer of its own; null when it is not `bytes` long. Rejects when it is not there. */
  read(name: string, bytes: number): Promise<ArrayBuffer | null>;
  /** Removes a file. One that is not there is no error. */
  remove(name: string): Promise<void>;
  /** Removes the pool's directory, and everything in it. The files cannot be used afterwards. */
  removeAll(): Promise<void>;
}
