// Cuts the commands of one turn into messages of bounded size, in order.

import type { WireCommand } from "./message.ts";

/** Room in a message for what surrounds runs. */
export const MESSAGE_SLACK_BYTES = 2 ** 20;
/** What the fields of a command without arrays take, about. */
const COMMAND_BYTES = 1024;

/** Each of `bytesMax` or less, or of one command. */
export function* batchesOf(
  commands: readonly WireCommand[],
  bytesMax: number,
): Generator<readonly WireCommand[]> {
  let from = 0;
  let bytes = 0;
  for (const [i, command] of commands.entries()) {
    const size = sizeOf(command);
    if (bytes > 0 && bytes + size > bytesMax) {
      yield commands.slice(from, i);
      from = i;
      bytes = 0;
    }
    bytes += size;
  }
  if (from < commands.length) yield from === 0 ? commands : commands.slice(from);
}

function sizeOf(command: WireCommand): number {
  switch (command.kind) {
    case "run": {
      const { output, kv, request } = command;
      const tokenBytes = output.byteLength + request.prompt.byteLength;
      const kvBytes = kv !== null && "bytes" in kv ? kv.bytes.byteLength : 0;
      return COMMAND_BYTES + tokenBytes + kvBytes;
    }
    case "register_group":
      return COMMAND_BYTES + command.prompt.byteLength;
    case "delta":
      return COMMAND_BYTES + command.tokens.byteLength;
    default:
      return COMMAND_BYTES;
  }
}
