// Attacks weight updates of a real `foretoken serve` over two embedded engines: weights that
// are not numbers, all zero, cut short, of other shapes, behind FIFOs, devices and foreign folders; bodies of every
// kind; updates begun and never finished, two at once, resumed and aborted in between; engines whose thread ends meanwhile. Every
// call is answered within its deadline, and every token is of the weights that its answer names.

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { readGgufHead } from "../../../src/engines/llama/gguf.ts";
import { engineMissing, MAIN, scratch } from "../../e2e/tool.ts";
import { checkpoint, type Weights, writeSafetensors } from "../../llama/checkpoint.ts";
import { OTHER_MODEL_PATH } from "../../llama/engine-fixture.ts";
import { ANSWER_MS_MAX, type Choice, until } from "../http-client.ts";
import { ToolProcess } from "../process.ts";
import { rounds } from "./scale.ts";
import { Dice } from "./settings.ts";

setDefaultTimeout(600_000);

const SEED = Number(process.env.SEED ?? 1);
const TRIALS = rounds(9, 300);
/** An update that nobody goes on with is given up after so long. */
const TIMEOUT_S = 15;
const ENGINE = ["--deterministic", "--slots", "4", "--kv-tokens", "4096"];
/** SIGUSR2 ends the thread of an engine. */
const PRELOADED = join(import.meta.dir, "..", "..", "e2e", "ending-threads.ts");
const PROGRAM = [process.execPath, "--preload", PRELOADED, MAIN];

/** Files of weights by name: some good, most bad. */
class Files {
  readonly folder = scratch();
  readonly good: readonly string[];
  readonly bad: readonly unknown[];

  constructor() {
    const half = (tensors: Map<string, Weights>) => {
      const down = tensors.get("model.layers.1.mlp.down_proj.weight")?.values;
      for (let i = 0; down !== undefined && i < down.length; i += 2) down[i] = 0;
    };
    this.good = [this.#write("same", () => {}), this.#write("half", half)];
    const filled = (value: number) => (tensors: Map<string, Weights>) => {
      for (const { values } of tensors.values()) values.fill(value);
    };
    const one = (tensors: Map<string, Weights>) => {
      tensors.get("model.norm.weight")?.values.fill(Number.NaN, 3, 4);
    };
    const shape = (tensors: Map<string, Weights>) => {
      const norm = tensors.get("model.norm.weight");
      if (norm !== undefined) tensors.set("model.norm.weight", { ...norm, shape: [1, 1] });
    };
    const short = this.#write("short", () => {});
    truncateSync(short, 100_000);
    const cut = this.#write("cut", () => {});
    truncateSync(cut, readFileSync(cut).length - 1);
    this.bad = [
      this.#write("nan", filled(Number.NaN)),
      this.#write("infinity", filled(Number.POSITIVE_INFINITY)),
      this.#write("zero", filled(0)),
      this.#write("one-nan", one),
      this.#write("shape", shape),
      this.#write("missing", (tensors) => tensors.delete("model.norm.weight")),
      this.#nanGguf(),
      ...[short, cut, ...this.#files()],
      ...["/etc", "/", "/dev/zero", "/dev/random", "../../../../etc/passwd", "/proc/self/mem"],
      ...["a\u0000b", "x".repeat(100_000), "", 7, true, null, {}, ["a"], { path: "a" }],
    ];
  }

  #write(name: string, change: (tensors: Map<string, Weights>) => void): string {
    const path = join(this.folder, `${name}.safetensors`);
    const tensors = checkpoint();
    change(tensors);
    writeSafetensors(path, tensors, "F32");
    return path;
  }

  #nanGguf(): string {
    const path = join(this.folder, "nan.gguf");
    const bytes = readFileSync(OTHER_MODEL_PATH);
    const { tensors } = readGgufHead(OTHER_MODEL_PATH);
    const norm = tensors.find(({ name }) => name === "output_norm.weight");
    new DataView(bytes.buffer, bytes.byteOffset).setFloat32(norm?.offset ?? 0, Number.NaN, true);
    writeFileSync(path, bytes);
    return path;
  }

  #files(): string[] {
    const at = (name: string, content: string) => {
      const path = join(this.folder, name);
      writeFileSync(path, content);
      return path;
    };
    const fifo = (path: string) => {
      Bun.spawnSync(["mkfifo", path]);
      return path;
    };
    const folder = join(this.folder, "folder");
    mkdirSync(folder);
    fifo(join(folder, "model.safetensors"));
    return [
      at("empty.safetensors", ""),
      at("garbage.safetensors", "\u0000garbage".repeat(100)),
      at("garbage.gguf", "GGUF garbage"),
      at("text", "no weights"),
      fifo(join(this.folder, "fifo.safetensors")),
      fifo(join(this.folder, "fifo.gguf")),
      folder,
      join(this.folder, "absent"),
    ];
  }
}

describe.skipIf(engineMissing() !== null)("weight updates", () => {
  const files = new Files();
  let sidecar: ToolProcess;
  /** The engines' output under each of the good weights. */
  const expected = new Map<string, string>();
  const failures: string[] = [];
  const dice = new Dice(SEED);
  const below = (count: number) => dice.below(count);
  const one = <T>(of: readonly T[]): T => dice.one(of);

  beforeAll(async () => {
    const serving = ["--port", "0", "--llama", "2", "--weights-timeout-s", `${TIMEOUT_S}`];
    const args = ["serve", "--log", "off", ...serving, ...ENGINE];
    sidecar = new ToolProcess(args, { program: PROGRAM });
    await sidecar.listens();
    await until(() => sidecar.http.isServing(), sidecar.text);
    expected.set("0", (await generated()).tokens);
    for (const path of files.good) {
      const body = { update_info: { weights_path: path }, weight_version: path };
      expect((await post("/update_weights", body)).status).toBe(200);
      expected.set(path, (await generated()).tokens);
    }
    expect(new Set(expected.values()).size).toBeGreaterThan(1);
  });

  afterAll(async () => {
    await sidecar?.kill();
    rmSync(files.folder, { recursive: true });
  });

  const post = (path: string, body: unknown) => sidecar.http.post(path, body);

  async function generated() {
    const params = { max_tokens: 24, temperature: 1, seed: 7, ignore_eos: true };
    const body = { token_ids: [1, 5, 9, 200], sampling_params: params };
    const { status, text } = await sidecar.http.ask("/inference/v1/generate", body);
    if (status !== 200) return { status, tokens: "", spans: [] };
    const [choice] = (JSON.parse(text) as { choices: Choice[] }).choices;
    const spans = choice?.weight_versions ?? [];
    return { status, tokens: JSON.stringify(choice?.token_ids), spans };
  }

  /** Tokens of one version are those that its weights gave before; of several: the first ones are. */
  async function checkTokens(about: string): Promise<void> {
    const { status, tokens, spans } = await generated();
    if (status === 503) return;
    const [first] = spans;
    const wanted = expected.get(first?.version ?? "");
    if (status !== 200 || first === undefined || wanted === undefined) {
      failures.push(`${about}: status ${status}, weights ${JSON.stringify(spans)}`);
      return;
    }
    const given = (JSON.parse(tokens) as number[]).slice(0, first.end);
    if (
      JSON.stringify((JSON.parse(wanted) as number[]).slice(0, first.end)) === JSON.stringify(given)
    )
      return;
    failures.push(`${about}: tokens ${tokens} under ${JSON.stringify(spans)}, not ${wanted}`);
  }

  /** One way to say it. `version` null: the weights keep their name. */
  function requestOf(path: unknown, version: string | null): [string, unknown] {
    const named = version === null ? {} : { weight_version: version };
    return one<[string, unknown]>([
      ["/update_weights", { update_info: { weights_path: path }, ...named }],
      ["/update_weights", { weight_dir: path, ...named }],
      ["/collective_rpc", { method: "reload_weights", kwargs: { weights_path: path }, ...named }],
    ]);
  }

  const bad = () => requestOf(one(files.bad), "bad");
  const good = () => {
    const path = one(files.good);
    return requestOf(path, path);
  };
  const BODIES = ["", "{", "[]", "null", "7", '"x"', '{"update_info":null}', '{"method":7}'];
  const METHODS = ["update_weight", "Load_Weights", "x".repeat(5000), "__class__", "shutdown"];
  const CONTROL = ["/start_weight_update", "/finish_weight_update", "/resume", "/pause?mode=keep"];

  async function attempt(about: string, path: string, body: unknown): Promise<number> {
    try {
      return (await post(path, body)).status;
    } catch (error) {
      failures.push(`${about}: ${path} ${JSON.stringify(body).slice(0, 200)}: ${error}`);
      return 0;
    }
  }

  const ATTACKS: Record<string, (about: string) => Promise<void>> = {
    bad: async (about) => {
      const [path, body] = bad();
      const status = await attempt(about, path, body);
      if (status < 400) failures.push(`${about}: ${JSON.stringify(body).slice(0, 200)}: ${status}`);
    },
    good: async (about) => {
      const [path, body] = good();
      await attempt(about, path, body);
    },
    body: async (about) => {
      await attempt(about, one(["/update_weights", "/collective_rpc"]), one(BODIES));
    },
    method: async (about) => {
      await attempt(about, "/collective_rpc", { method: one(METHODS) });
    },
    atOnce: async (about) => {
      await Promise.all([good(), bad(), good()].map(([path, body]) => attempt(about, path, body)));
    },
    unfinished: async (about) => {
      await attempt(about, "/start_weight_update", {});
      if (below(2) === 0) await attempt(about, ...good());
      if (below(2) === 0) await attempt(about, ...bad());
      if (below(2) === 0) await attempt(about, "/resume", "");
      if (below(2) === 0) await attempt(about, "/abort_weight_update", "");
    },
    control: async (about) => {
      for (let i = below(5); i > 0; i -= 1) await attempt(about, one(CONTROL), "{}");
    },
    adapter: async (about) => {
      const body = { lora_name: one(["policy", "", 7, null]), lora_path: one(files.bad) };
      const paths = ["/v1/load_lora_adapter", "/load_lora_adapter", "/v1/unload_lora_adapter"];
      const status = await attempt(about, one(paths), body);
      if (status < 400 || status >= 500) failures.push(`${about}: an adapter: ${status}`);
    },
    kill: async (about) => {
      const update = attempt(about, ...good());
      if (below(2) === 0) await Bun.sleep(below(200));
      sidecar.signal("SIGUSR2");
      await update;
    },
  };

  /** Ends what the attack may have left behind: an open update, a pause. */
  async function calm(about: string): Promise<void> {
    await attempt(about, "/abort_weight_update", "");
    await attempt(about, "/resume", "");
  }

  test(`${TRIALS} attacks: every answer in time, every token of the weights it names`, async () => {
    const kinds = Object.keys(ATTACKS);
    for (let trial = 0; trial < TRIALS; trial += 1) {
      const kind = trial < kinds.length ? (kinds[trial] ?? "") : one(kinds);
      const about = `SEED=${SEED} trial ${trial} (${kind})`;
      const meanwhile = [checkTokens(about), checkTokens(about)];
      await ATTACKS[kind]?.(about);
      // An update that is left open ends by itself, a pause does not.
      if (below(2) === 0) await calm(about);
      else await attempt(about, "/resume", "");
      await Promise.all(meanwhile);
      await calm(about);
      await checkTokens(about);
      expect(failures).toEqual([]);
    }
  });

  test("afterwards: good weights are taken by both engines, and both generate as before", async () => {
    await calm("the end");
    const [path = ""] = files.good;
    // An engine that is being opened meanwhile is given the weights afterwards.
    let told = "";
    const isTaken = async () => {
      const body = { weight_dir: path, weight_version: path };
      const { status, text } = await sidecar.http.ask("/update_weights", body);
      told = text;
      return status === 200;
    };
    await until(isTaken, () => told, ANSWER_MS_MAX);
    await until(() => sidecar.http.isServing(), "both engines");
    const answers = await Promise.all(Array.from({ length: 8 }, generated));
    for (const { tokens } of answers) expect(tokens).toBe(expected.get(path) ?? "");
  });
});
