// Agents that nobody changes, through one address: their trajectories are what the engines read and drew, token by token.
// The engines are stand-ins whose tokens follow from all tokens before them, with a scripted model that calls tools.

import { afterAll, expect, test } from "bun:test";
import { join } from "node:path";
import { StandInBed, stopBeds } from "../faults/attacks/stand-in-bed.ts";
import { CuttingProxy } from "../faults/cutting-proxy.ts";
import { standInLogprob } from "../faults/stand-in/tokens.ts";
import type { ExportedSession } from "../suite/exported-session.ts";
import { AGENTS } from "./clients.ts";
import { ScriptedChat, wholeResponse } from "./scripted-chat.ts";

const DRIVER = join(import.meta.dir, "python", "drive_agents.py");
/** Tokens at which a response ends, after some 50, and none of the test as its first. */
const ENDS = Array.from({ length: 20 }, (_, i) => 5 + 50 * i);
/** Their output is the same in every run, and with it every prompt and response: a random path drew an empty one now and then. */
const COMMANDS = [
  "ls",
  "false",
  "echo 1",
  "echo 2",
  "echo here",
  "echo 3",
  "echo 4",
  "echo 5",
  "echo 6",
];
const SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT";

afterAll(stopBeds);

const missing = AGENTS.missing;
const testIf = missing === null ? test : test.skip;

testIf(
  `agents: whole trajectories, id by id${missing === null ? "" : ` (skipped: ${missing})`}`,
  async () => {
    const scripted = new ScriptedChat({
      bash: [...COMMANDS, SUBMIT].map((command) => ({ command })),
      look_up: [{ city: "here" }, { city: "nowhere" }],
      read_file: [{ path: "a" }, { path: "b" }],
    });
    const routes = (path: string, body: unknown) => scripted.answer(path, body);
    const bed = await StandInBed.start(2, () => ({ routes, contextTokens: 100_000 }), {
      serve: { model: { eosTokenIds: ENDS } },
    });
    const proxy = await CuttingProxy.before(bed.sidecar.url.href);
    proxy.cutAfterBytes = 1_200;
    proxy.cutsMax = 1;
    const url = bed.sidecar.url.origin;
    const driver = Bun.spawn(
      [AGENTS.python, DRIVER, "--server", url, "--cut", `http://127.0.0.1:${proxy.port}`],
      { stdout: "pipe", stderr: "pipe", timeout: 240_000 },
    );
    const [stdout, stderr] = await Promise.all([
      new Response(driver.stdout).text(),
      new Response(driver.stderr).text(),
    ]);
    expect([await driver.exited, stderr.slice(-3000)]).toEqual([0, expect.anything()]);
    const ended = JSON.parse(stdout.trim().split("\n").at(-1) ?? "");
    expect(ended).toMatchObject({ swe: "Submitted", anthropic: [3, "end_turn"] });
    expect(ended.openai).toHaveLength(5);
    expect(proxy.cuts).toBe(1);

    const answer = await fetch(`${url}/v1/sessions?format=ndjson&group=task`);
    const lines = (await answer.text()).trimEnd().split("\n");
    const sessions = new Map(
      lines.map((line): [string, ExportedSession] => {
        const one: ExportedSession = JSON.parse(line);
        return [one.session, one];
      }),
    );
    expect([...sessions.keys()].toSorted()).toEqual([
      "branches",
      "cut",
      "messages",
      "streamed",
      "swe",
    ]);
    for (const { session, segments, turns, ...whole } of sessions.values()) {
      expect([session, whole.is_complete, whole.incomplete_because]).toEqual([session, true, []]);
      let drawn = 0;
      for (const { token_ids: ids, loss_mask: mask, logprobs, spans } of segments) {
        for (const { from, to } of spans) {
          const output = ids.slice(from, to);
          // Throws where no engine has drawn these tokens; the first stop token is the last one.
          wholeResponse(ids.slice(0, from), output);
          const stop = output.findIndex((token) => ENDS.includes(token));
          expect([session, stop]).toEqual([session, output.length - 1]);
          expect(logprobs.slice(from, to)).toEqual(output.map(standInLogprob));
          expect(mask.slice(from, to).every((bit) => bit === 1)).toBe(true);
          drawn += 1;
        }
      }
      expect([session, drawn]).toEqual([session, turns.length]);
    }
    const swe = sessions.get("swe");
    expect(swe?.segments).toHaveLength(1);
    expect(
      swe?.turns.map(({ tool_calls: [call] }) => JSON.parse(call?.arguments ?? "{}").command),
    ).toEqual([...COMMANDS, SUBMIT]);
    // The first run; a branch that goes on from it, another one from the same turn; a history made anew.
    const branches = sessions.get("branches")?.segments ?? [];
    const length = branches[0]?.token_ids.length ?? 0;
    expect(branches).toHaveLength(3);
    expect(branches[1]?.parent?.segment).toBe(0);
    expect(branches[1]?.parent?.tokens).toBeLessThan(length);
    expect(branches[2]?.parent?.tokens).toBeLessThan(branches[1]?.parent?.tokens ?? 0);
    proxy.close();
  },
  300_000,
);
