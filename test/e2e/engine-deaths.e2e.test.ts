// An engine whose thread ends, as a fault in its native code ends it: it is opened again, and no token is lost or changed.
// Deaths of engine servers are chaos.e2e.test.ts's.

import { expect, onTestFinished, setDefaultTimeout } from "bun:test";
import { join } from "node:path";
import { until } from "../faults/http-client.ts";
import { ToolProcess } from "../faults/process.ts";
import { engineTest } from "../suite/engine-test.ts";
import { MAIN } from "./tool.ts";

setDefaultTimeout(180_000);

engineTest("an embedded engine whose thread ends is opened again, each time", async () => {
  const preload = ["--preload", join(import.meta.dir, "ending-threads.ts"), MAIN];
  const program = [process.execPath, ...preload];
  const args = ["serve", "--llama", "1", "--port", "0", "--deterministic", "--log", "text"];
  const sidecar = new ToolProcess(args, { program });
  onTestFinished(() => sidecar.kill());
  const { http } = await sidecar.listens().then(() => sidecar);
  await until(() => http.isServing(), "the engine");
  const greedy = () =>
    http.tokens([5, 6, 7, 8, 9], { max_tokens: 600, ignore_eos: true, temperature: 0 });
  const undisturbed = await greedy();
  const untilSaid = (line: RegExp, times: number) =>
    until(
      () => sidecar.lines.filter((one) => line.test(one)).length === times,
      () => sidecar.text,
    );
  for (let life = 1; life <= 2; life += 1) {
    const tokens = () => http.metric("vllm:generation_tokens_total");
    const before = await tokens();
    const asked = greedy();
    await until(async () => (await tokens()) > before, "tokens");
    sidecar.signal("SIGUSR2");
    await untilSaid(/ state=down /, life);
    expect(await asked).toEqual(undisturbed);
  }
  sidecar.signal("SIGUSR2");
  // Opening takes much longer than the signal: this thread ends before it has opened.
  await untilSaid(/engine's thread begins/, 4);
  sidecar.signal("SIGUSR2");
  await untilSaid(/engine's thread begins/, 5);
  await until(() => http.isServing(), "the engine");
  expect(await greedy()).toEqual(undisturbed);
});
