// The settings files that the program reads when it starts.

import fc from "fast-check";
import { commandOf } from "../../../../src/cli/command.ts";
import { SERVING_FIELDS } from "../../../../src/cli/serve-command.ts";
import { FIELDS, type FieldName, fileKey } from "../../../../src/config/fields.ts";
import { anyJson } from "../json-text.ts";
import { type FuzzTarget, fileTarget } from "../target.ts";
import { textInputs } from "../variations.ts";

const SETTINGS = SERVING_FIELDS.filter((name) => name !== "config");

/** Valid and invalid values of a field, in JSON and TOML alike. */
function settingOf(name: FieldName): fc.Arbitrary<string> {
  const field = FIELDS[name];
  if (field.kind === "switch") return fc.constantFrom("true", "false", "1");
  if (field.kind === "choice")
    return fc.constantFrom(...field.choices, "x").map((one) => `"${one}"`);
  if (field.kind === "list") return fc.constantFrom('["a"]', "[]", '["a", "b"]', "[1]", '"a"');
  if (field.kind === "text") return fc.constantFrom('"x"', '""', '"/a/b"', "1");
  const [min, max] = field.range;
  return fc.constantFrom(
    ...[min, max, min - 1, max + 1, min + 0.5].map(String),
    '"7"',
    "nan",
    "1_000",
  );
}
const setting = fc.oneof(
  ...SETTINGS.map((name) => settingOf(name).map((text) => [fileKey(FIELDS[name]), text] as const)),
);
const settings = fc.array(
  fc.oneof(
    { arbitrary: setting, weight: 12 },
    { arbitrary: anyJson.map((text) => ["port", text] as const), weight: 1 },
    {
      arbitrary: fc.constantFrom(["[table]\nport", "1"], ['"a b"', "1"], [
        "a.b",
        "{ c = 1 }",
      ] as const),
      weight: 1,
    },
  ),
  { maxLength: 6 },
);
const toml = textInputs(
  settings.map((pairs) => pairs.map(([key, text]) => `${key} = ${text}\n`).join("")),
);
const json = textInputs(
  settings.map((pairs) => `{${pairs.map(([key, text]) => `"${key}": ${text}`).join(",")}}`),
);

const about = { name: "serve", description: "", help: "", fields: SERVING_FIELDS };
const serve = commandOf({ ...about, run: async () => 0 });

function readConfig(path: string): void {
  serve(() => {})
    .exitOverride()
    .parse(["--config", path], { from: "user" });
}

const CONFIG = { codes: ["invalid_config"] } as const;

export const stateTargets: readonly FuzzTarget[] = [
  fileTarget("config toml", toml, { ...CONFIG, ending: ".toml", read: readConfig }),
  fileTarget("config json", json, { ...CONFIG, ending: ".json", read: readConfig }),
];
