// The engines of history-live.ts: a sidecar with one engine, of either kind, whose weights are replaced by a file.

import { copyFileSync, cpSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Fleet, MODEL, ROOT } from "../../test/vllm/fleet.ts";

export interface Drafts {
  readonly drafted: number;
  readonly accepted: number;
  /** Steps of the engine; an embedded one does not tell. */
  readonly engineSteps: number;
}

export interface Side {
  /** The tokens of one response. */
  complete(prompt: readonly number[], maxTokens: number): Promise<number>;
  /** `file`: of safetensors. */
  load(file: string): Promise<void>;
  /** Since the start. */
  drafts(): Promise<Drafts>;
  stop(): Promise<unknown>;
}

export const ENGINES = { vllm: openVllm, llama: openLlama } as const;

/** As the telemetry of the plugin, which comes every second. */
const TELEMETRY_MS = 1_200;

/** A vLLM server with the plugin. It reads a directory, whose weights are replaced. */
async function openVllm(historyMb: number): Promise<Side> {
  const folder = mkdtempSync(join(tmpdir(), "foretoken-history-live-"));
  cpSync(MODEL, folder, { recursive: true });
  const logs = join("out", `history-live-${historyMb}`);
  const flags = ["--workers", "1", "--plugin", "--history-mb", String(historyMb), "--logs", logs];
  const fleet = await Fleet.up(flags);
  return {
    complete: async (prompt, maxTokens) => {
      const [choice] = await fleet.complete({ prompt, max_tokens: maxTokens, temperature: 1 });
      return choice?.token_ids.length ?? 0;
    },
    load: async (file) => {
      copyFileSync(file, join(folder, "model.safetensors"));
      const body = { method: "reload_weights", kwargs: { weights_path: folder } };
      const answer = await fleet.call("POST", "/collective_rpc", body);
      if (answer.status !== 200) throw new Error(`reload_weights: ${await answer.text()}`);
    },
    drafts: async () => {
      await Bun.sleep(TELEMETRY_MS);
      const answer = await fleet.call("GET", "/foretoken/engines");
      const { engines } = (await answer.json()) as {
        engines: { drafted_tokens: number; accepted_tokens: number; steps: number }[];
      };
      const [engine] = engines;
      const { drafted_tokens: drafted = 0, accepted_tokens: accepted = 0 } = engine ?? {};
      return { drafted, accepted, engineSteps: engine?.steps ?? 0 };
    },
    stop: async () => {
      await fleet.stop();
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

async function openLlama(historyMb: number): Promise<Side> {
  const model = join(ROOT, "model", "foretoken-3m-f16.gguf");
  const main = join(ROOT, "src", "main.ts");
  const flags = ["--llama", "1", "--port", "0", "--log", "off", "--history-mb", String(historyMb)];
  const child = Bun.spawn([process.execPath, main, "serve", "--model", model, ...flags], {
    stdout: "pipe",
    stderr: "inherit",
  });
  let text = "";
  for await (const piece of child.stdout) {
    text += new TextDecoder().decode(piece);
    if (text.includes("\n")) break;
  }
  const url = text.trim().split(" ").at(-1) ?? "";
  const post = async (path: string, body: object): Promise<unknown> => {
    const answer = await fetch(new URL(path, url), { method: "POST", body: JSON.stringify(body) });
    if (answer.status !== 200) throw new Error(`${path}: ${await answer.text()}`);
    const answered = await answer.text();
    return answered === "" ? null : JSON.parse(answered);
  };
  return {
    complete: async (prompt, maxTokens) => {
      const body = { prompt, max_tokens: maxTokens, temperature: 1, return_token_ids: true };
      const { choices } = (await post("/v1/completions", body)) as {
        choices: { token_ids: number[] }[];
      };
      return choices[0]?.token_ids.length ?? 0;
    },
    load: async (file) => {
      await post("/start_weight_update", {});
      await post("/update_weights", { update_info: { weights_path: file } });
      await post("/finish_weight_update", {});
    },
    drafts: async () => {
      const metrics = await (await fetch(new URL("/metrics", url))).text();
      const of = (name: string) =>
        Number(
          new RegExp(`^vllm:spec_decode_num_${name}_tokens_total\\{[^}]*\\} (\\S+)`, "m").exec(
            metrics,
          )?.[1],
        );
      return { drafted: of("draft"), accepted: of("accepted"), engineSteps: 0 };
    },
    stop: async () => {
      child.kill("SIGKILL");
      await child.exited;
    },
  };
}
