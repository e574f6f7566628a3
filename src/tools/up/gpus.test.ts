import { expect, test } from "bun:test";
import { gpusOf, gpusPerServer, visibleGpus } from "./gpus.ts";

test("gpusPerServer: sizes multiply, however they are written; the last one wins", () => {
  const cases: [string[], number][] = [
    [[], 1],
    [["--dtype", "float16"], 1],
    [["--tensor-parallel-size", "2"], 2],
    [["--tensor_parallel_size=4", "-pp", "2"], 8],
    [["-tp", "2", "-dp", "3", "--pipeline-parallel-size", "1"], 6],
    [["-tp=2", "--tensor-parallel-size", "8"], 8],
    [["--data-parallel-size", "16", "--data-parallel-size-local", "4", "-tp", "2"], 8],
    // Contexts are split over the same GPUs.
    [["-tp", "8", "--decode-context-parallel-size", "4"], 8],
  ];
  for (const [args, gpus] of cases) expect([args, gpusPerServer(args)]).toEqual([args, gpus]);
  for (const bad of ["0", "two", "-1", "1.5", ""]) {
    expect(() => gpusPerServer(["-tp", bad])).toThrow(`-tp is "${bad}"`);
  }
});

test("visibleGpus: the environment overrides the machine's devices", () => {
  const all = () => "0\n1\n2\n3\n";
  expect(visibleGpus({}, all)).toEqual(["0", "1", "2", "3"]);
  expect(visibleGpus({ CUDA_VISIBLE_DEVICES: "GPU-a, GPU-b" }, all)).toEqual(["GPU-a", "GPU-b"]);
  expect(visibleGpus({ CUDA_VISIBLE_DEVICES: "" }, all)).toEqual([]);
  expect(visibleGpus({}, () => null)).toBeNull();
});

test("gpusOf: each server has its own slice, in order", () => {
  const visible = ["4", "5", "6", "7"];
  expect(gpusOf({ visible, servers: 4, perServer: 1 })).toEqual(["4", "5", "6", "7"]);
  expect(gpusOf({ visible, servers: 2, perServer: 2 })).toEqual(["4,5", "6,7"]);
  expect(gpusOf({ visible: null, servers: 4, perServer: 2 })).toEqual(["0,1", "2,3", "4,5", "6,7"]);
  // Too few are an error that names the maximum.
  expect(() => gpusOf({ visible, servers: 4, perServer: 2 })).toThrow(
    "4 servers of 2 GPUs each take 8, and there are 4: give --workers 2",
  );
});
