// The types of the routes reach a file that runs in Bun alone: its threads have a method that a browser's lack.

interface Worker {
  unref(): void;
}
