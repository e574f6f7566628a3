// A stream of server-sent events as its client reads it.

/** All events as JSON, and whether the stream ended with [DONE]. */
export function eventsOf<Event = unknown>(text: string): { events: Event[]; isDone: boolean } {
  const data = text
    .split("\n\n")
    .filter((event) => event !== "")
    .map((event) => event.replace(/^data: /, ""));
  const isDone = data.at(-1) === "[DONE]";
  return { events: (isDone ? data.slice(0, -1) : data).map((one) => JSON.parse(one)), isDone };
}

/** Tokens of the first choice of every event. */
export function tokensIn(events: readonly unknown[]): number[] {
  return (events as { choices: { token_ids: number[] }[] }[]).flatMap(
    ({ choices }) => choices[0]?.token_ids ?? [],
  );
}
