/** Runs `act` and passes an error to `failed`, so that one client, timer or engine cannot disturb the others. */
export function contain(act: () => void, failed: (error: unknown) => void): void {
  try {
    act();
  } catch (error) {
    failed(error);
  }
}
