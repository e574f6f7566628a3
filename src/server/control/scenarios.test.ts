// States of three engines after calls, faults and deaths in an order: one row each, `;` where states are checked.

import { expect, test } from "bun:test";
import { ControlFixture, type Script } from "../../../test/suite/control-fixture.ts";

const reload = { method: "reload_weights", kwargs: { weights_path: "/w/1" } };
const answering =
  (status: number): Script =>
  () => ({ status, body: status < 300 ? {} : { error: "an error" } });

/** Words of scenarios: a call, or `WORD:ENGINE`, `*` for all engines. */
const CALLS: Readonly<Record<string, [path: string, body?: object]>> = {
  start: ["/start_weight_update", {}],
  part: ["/update_weights", { update_info: { names: ["a"] } }],
  finish: ["/finish_weight_update", {}],
  abort: ["/abort_weight_update"],
  reload: ["/collective_rpc", reload],
  lora: ["/v1/load_lora_adapter", { lora_name: "policy", lora_path: "/lora/1" }],
  sleep: ["/sleep?level=2"],
  wakeWeights: ["/wake_up?tags=weights"],
  wakeKv: ["/wake_up?tags=kv_cache"],
};

async function carryOut(fixture: ControlFixture, word: string): Promise<void> {
  const [what = "", engine = ""] = word.split(":");
  const call = CALLS[what];
  if (call !== undefined) await fixture.call("POST", ...call);
  else if (what === "retry") await fixture.retry();
  else if (what === "time") await fixture.passTime();
  else {
    for (const index of engine === "*" ? [0, 1, 2] : [Number(engine)]) {
      const worker = fixture.worker(index);
      if (what === "kill") worker.kill();
      else if (what === "nan")
        worker.generates = () => ({ status: 500, body: { error: "a logprob is none" } });
      else if (what === "good") worker.generates = () => ({ status: 200, body: { tokens: 4 } });
      else worker.script = answering(Number(what));
    }
  }
}

/**
 * Servers that keep their weights, or engines opened with the first ones; steps; then the engines' states by their first
 * letters, and the weight epoch; what it shows.
 */
const SCENARIOS = `
  keeps / kill:0; retry / drr; rrr / 0 / an engine that dies before any update comes back
  keeps / start finish / rrr / 0 / without an update the weights are the same
  keeps / 500:1 reload; 200:1 reload / rfr; rrr / 2 / a fenced engine serves again with the current weights
  keeps / 400:* reload / rrr / 0 / an update that every engine refuses changes nothing
  keeps / start 500:2 part 200:2 part finish / rrf / 1 / one that misses one update of several is fenced
  keeps / start part finish kill:0 retry / frr / 1 / one without the trainer's weights stays fenced
  keeps / start part kill:0 retry; finish / frr; frr / 1 / one that was opened again during the update is fenced
  keeps / start part 500:* part 200:* finish; reload / fff; rrr / 2 / where every engine fails in the middle, none serves
  keeps / 500:* reload / fff / 1 / where every engine fails at whole weights, none serves
  keeps / part lora kill:0 retry / frr / 2 / an adapter needs the weights under it
  keeps / 500:1 reload 200:1 lora / rfr / 2 / an adapter does not bring a fenced engine back
  fresh / 500:1 reload; 502:1 reload; retry / rfr; rdr; rrr / 2 / an engine that cannot be reached is opened again
  fresh / 500:1 reload; kill:1; reload retry / rfr; rdr; rrr / 2 / a fenced engine that dies is opened again
  keeps / nan:1 reload / rfr / 1 / one that does not generate with its new weights is fenced, and the others serve
  keeps / nan:* start part finish; good:* reload / fff; rrr / 2 / where no engine generates none serves, until good weights come
  fresh / sleep nan:2 wakeWeights; wakeKv; retry / rrr; rrd; rrr / 0 / one that does not generate when it is awake is opened again
  fresh / start 400:2 part 200:2 time; retry / ddr; rrr / 0 / an update that is left open is given up
  keeps / start part abort retry; reload / fff; rrr / 1 / an update given up on servers that keep their weights
  keeps / start abort / rrr / 0 / an update given up before a part leaves all as they were
  fresh / 400:2 start 200:2 part abort / ddd / 0 / one that took a part without its start is opened again
  keeps / start 400:2 part 200:2 kill:0 kill:2 retry; abort retry / frr; ffr / 0 / a server that holds a part and came back over another connection is fenced
  keeps / start part 400:* reload 200:* finish / rrr / 1 / whole weights that all refuse leave an open update open`;

for (const line of SCENARIOS.trim().split("\n")) {
  const [kind, steps = "", states = "", epoch, name] = line.trim().split(" / ");
  test(`control: ${name}: ${steps}`, async () => {
    const fixture = await ControlFixture.open({ keepsWeights: kind === "keeps" });
    const requests = fixture.ask(3);
    const seen: string[] = [];
    for (const stage of steps.split("; ")) {
      for (const word of stage.split(" ")) await carryOut(fixture, word);
      seen.push(fixture.states.map((state) => state.charAt(0)).join(""));
    }
    expect([seen.join("; "), Number(fixture.sidecar.rollout.epoch)]).toEqual([
      states,
      Number(epoch),
    ]);
    expect(fixture.sidecar.rollout.pauseMode).toBeNull();
    // Engines that work again, with good weights, serve all of it.
    for (const word of ["retry", "200:*", "good:*", "reload"]) await carryOut(fixture, word);
    await fixture.steps(80);
    expect(requests.every(({ response }) => response.finish === "stop")).toBe(true);
  });
}
