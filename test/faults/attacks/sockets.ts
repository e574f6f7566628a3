import { connect, type Socket } from "node:net";
import { WebSocket } from "ws";

/** 101 where the socket opens, else the status of the refused upgrade. */
export function socketStatus(url: string, headers: Record<string, string> = {}): Promise<number> {
  return new Promise((resolve, reject) => {
    const socket = new WebSocket(url.replace(/^http/, "ws"), { headers });
    socket.once("open", () => {
      socket.terminate();
      resolve(101);
    });
    socket.once("unexpected-response", (_request, answer) => {
      resolve(answer.statusCode ?? 0);
      socket.terminate();
    });
    socket.on("error", reject);
  });
}

export interface Connection {
  readonly socket: Socket;
  /** Received text; complete when `ended` resolves. */
  text: string;
  readonly ended: Promise<void>;
}

/** A connection for bytes that no HTTP client sends. */
export function dialled({ port, hostname }: URL): Connection {
  const socket = connect(Number(port), hostname);
  const ended = new Promise<void>((resolve) => socket.once("close", () => resolve()));
  const connection: Connection = { socket, text: "", ended };
  socket.on("error", () => {});
  socket.on("data", (bytes) => {
    connection.text += bytes.toString("latin1");
  });
  return connection;
}
