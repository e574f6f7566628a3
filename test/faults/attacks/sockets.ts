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
