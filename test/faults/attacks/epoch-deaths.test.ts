// Attacks weight updates by killing worker processes (kill -9) at every stage of one: before it, when it begins, while
// the weights are read, between them and the end, at the end and right after it, with responses under way. A real
// `foretoken serve` over an embedded engine and two worker processes. What must hold: every call is answered within its
// deadline; no response is lost, and each has the tokens of an undisturbed one, for the weights are always the same
// file; workers that come back serve. Repeat a failure with SEED=n bun test <this file>.

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { fold32 } from "../../../src/core/base/hash.ts";
import { engineMissing, ROOT } from "../../e2e/tool.ts";
import { until } from "../http-client.ts";
import { ToolProcess } from "../process.ts";
import { rounds } from "./scale.ts";

setDefaultTimeout(600_000);

const SEED = Number(process.env.SEED ?? 1);
const ENGINE = ["--deterministic", "--slots", "4", "--kv-tokens", "4096"];
const WEIGHTS = `${ROOT}/model/foretoken-3m-q8_0.gguf`;
const STAGES = ["between", "reading", "whole", "before", "begin", "end", "after"] as const;
const LANES = 6;

describe.skipIf(engineMissing() !== null)("deaths in weight updates", () => {
  const workers: ToolProcess[] = [];
  let sidecar: ToolProcess;
  let wanted: readonly number[] = [];

  const TOKENS = 200;

  beforeAll(async () => {
    workers.push(...(await Promise.all([0, 1].map(() => workerAt("127.0.0.1:0")))));
    const urls = workers.flatMap(({ url }) => ["--worker", url]);
    sidecar = await ToolProcess.serving("--llama", "1", ...urls, ...ENGINE, "--log", "json");
    await ready("at the start");
    wanted = await generated();
    expect(wanted.length).toBe(TOKENS);
  });

  afterAll(async () => {
    await Promise.all([sidecar, ...workers].map((one) => one?.kill()));
  });

  const workerAt = (listen: string) =>
    ToolProcess.listening("worker", "--listen", listen, ...ENGINE);

  /** @throws a status other than 200. */
  const generated = () =>
    sidecar.http.tokens([1, 5, 9, 200], {
      ...{ max_tokens: TOKENS, temperature: 1, seed: 7, ignore_eos: true },
    });

  const ready = (about: string) => until(() => sidecar.http.isServing(), `${about}: every worker`);
  const call = (path: string, body: object) => sidecar.http.post(path, body);

  const PATH = { update_info: { weights_path: WEIGHTS } };
  const RELOAD = { method: "reload_weights", kwargs: { weights_path: WEIGHTS } };

  /** An update, with the deaths of `victims` at a stage of it. Returns what its last call was answered with. */
  async function update(stage: (typeof STAGES)[number], kill: () => void, pauseMs: number) {
    const soon = async () => {
      await Bun.sleep(pauseMs);
      kill();
    };
    if (stage === "whole") {
      const [answer] = await Promise.all([call("/collective_rpc", RELOAD), soon()]);
      return answer;
    }
    if (stage === "before") kill();
    await Promise.all([call("/start_weight_update", {}), stage === "begin" ? soon() : null]);
    const [first] = await Promise.all([
      call("/update_weights", PATH),
      stage === "reading" ? soon() : null,
    ]);
    if (stage === "between") kill();
    const [last] = await Promise.all([
      call("/finish_weight_update", {}),
      stage === "end" ? soon() : null,
    ]);
    if (stage === "after") kill();
    return first.ok ? last : first;
  }

  test("kill -9 at every stage of an update loses no response, and nothing hangs", async () => {
    const trials = rounds(2, 60);
    for (let trial = 0; trial < trials; trial += 1) {
      const dice = (purpose: number, below: number) => fold32(fold32(SEED, trial), purpose) % below;
      const stage = STAGES[trial % STAGES.length] ?? "whole";
      const victims = dice(1, 3) === 0 ? [0, 1] : [dice(2, 2)];
      const about = `SEED=${SEED} trial ${trial}: ${stage}, workers ${victims}`;
      const load = Array.from({ length: LANES }, generated);
      await Bun.sleep(dice(3, 60));
      const kill = () => {
        for (const victim of victims) void workers[victim]?.kill();
      };
      await update(stage, kill, dice(4, 80));
      for (const tokens of await Promise.all(load)) {
        expect({ about, tokens }).toEqual({ about, tokens: wanted });
      }
      for (const victim of victims) {
        const { host } = new URL(workers[victim]?.url ?? "");
        workers[victim] = await workerAt(host);
      }
      await ready(about);
      // On each of the workers.
      const after = await Promise.all(Array.from({ length: LANES }, generated));
      for (const tokens of after) expect({ about, tokens }).toEqual({ about, tokens: wanted });
    }
    expect(sidecar.hasEnded).toBe(false);
    expect(sidecar.text).not.toContain("quarantined");
    expect(sidecar.text).not.toContain("broken");
  });
});
