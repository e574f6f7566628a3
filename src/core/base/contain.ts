/** Runs `act`. What it throws goes to `failed` and no further: the wall between one client, timer or engine and the others. */
export function contain(act: () => void, failed: (error: unknown) => void): void {
  try {
    act();
  } catch (error) {
    failed(error);
  }
}
