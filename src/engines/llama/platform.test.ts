import { expect, test } from "bun:test";
import { AppError } from "../../core/base/errors.ts";
import { type LocateOptions, locateLibrary, PACKAGE_VERSION } from "./platform.ts";

function problem(options: LocateOptions): AppError {
  try {
    locateLibrary(options);
  } catch (error) {
    if (error instanceof AppError) return error;
  }
  throw new Error("no AppError");
}

const linux = { platform: "linux", arch: "x64" };

test("locateLibrary: without the package the error names what to install", () => {
  const resolve = (): string => {
    throw new Error("not found");
  };
  const error = problem({ ...linux, resolve });
  expect(error.code).toBe("native_library_missing");
  expect(error.message).toContain(`npm install @node-llama-cpp/linux-x64@${PACKAGE_VERSION}`);
});

test("locateLibrary: a platform without a prebuilt library is named", () => {
  const error = problem({ platform: "plan9", arch: "mips" });
  expect(error.code).toBe("native_library_missing");
  expect(error.message).toContain("plan9-mips");
});

test("locateLibrary: the pinned version is that of package.json", async () => {
  const { optionalDependencies } = await Bun.file(
    new URL("../../../package.json", import.meta.url),
  ).json();
  expect(optionalDependencies["@node-llama-cpp/linux-x64"]).toBe(PACKAGE_VERSION);
});

test("locateLibrary: a compiled executable takes the libraries beside it, and names the folder without them", () => {
  const error = problem({ ...linux, compiledIn: "/nowhere" });
  expect(error.code).toBe("native_library_missing");
  expect(error.message).toContain("/nowhere/llama/libllama");
  expect(error.message).toContain(`@node-llama-cpp/linux-x64@${PACKAGE_VERSION}`);
});
