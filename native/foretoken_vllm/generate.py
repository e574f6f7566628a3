"""Writes the package's copies of what the repository decides elsewhere: the core's ABI, the draft schema, the release.

`python generate.py` writes src/foretoken_vllm/abi.py from assembly/abi.ts, src/foretoken_vllm/schema.py
from proto/draft.proto and src/foretoken_vllm/version.py from package.json; `--check` ends with 1 if one is
stale. A line that it does not know is an error.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = HERE / "src" / "foretoken_vllm"


def abi_module(source: str) -> str:
    """The constants of assembly/abi.ts as a Python module."""
    lines = ['"""Generated from assembly/abi.ts by generate.py; never edited by hand."""', ""]
    for line in source.splitlines():
        if line == "" or line.startswith("//"):
            continue
        match = re.fullmatch(r"export const ([A-Z0-9_]+): i32 = (-?\d+);", line)
        if match is None:
            raise ValueError(f"assembly/abi.ts: not a constant: {line}")
        lines.append(f"{match[1]} = {match[2]}")
    return "\n".join(lines) + "\n"


def version_module(source: str) -> str:
    """The release that the sidecar compares with its own."""
    version = json.loads(source)["version"]
    return f'"""Generated from package.json by generate.py; never edited by hand."""\n\nVERSION = "{version}"\n'


def _entries(source: str) -> tuple[str, list[tuple[str, str, list[str]]]]:
    """The package and, of each message and enum, its kind, name and lines; a oneof's lines are among them."""
    package = ""
    found: list[tuple[str, str, list[str]]] = []
    depth = 0
    for raw in source.splitlines():
        line = raw.split("//")[0].strip()
        if line == "" or line.startswith("syntax"):
            continue
        if match := re.fullmatch(r"package ([\w.]+);", line):
            package = match[1]
        elif match := re.fullmatch(r"(message|enum) (\w+) \{", line):
            found.append((match[1], match[2], []))
            depth = 1
        elif depth > 0 and re.fullmatch(r"oneof body \{", line):
            depth += 1
            found[-1][2].append("oneof")
        elif line == "}":
            depth -= 1
        elif depth > 0:
            found[-1][2].append(line)
        else:
            raise ValueError(f"proto/draft.proto: not understood: {raw}")
    return package, found


def schema_module(source: str) -> str:
    """Messages as {name: ((field, number, type, repeated, in_oneof), ...)}, enums as {name: ((value, number), ...)}."""
    package, entries = _entries(source)
    messages: list[str] = []
    enums: list[str] = []
    for kind, name, body in entries:
        rows: list[str] = []
        in_oneof = "oneof" in body
        for line in body:
            if line == "oneof":
                continue
            if kind == "enum":
                match = re.fullmatch(r"(\w+) = (\d+);", line)
                row = None if match is None else f'("{match[1]}", {match[2]})'
            else:
                match = re.fullmatch(r"(repeated )?(\w+) (\w+) = (\d+);", line)
                row = (
                    None
                    if match is None
                    else f'("{match[3]}", {match[4]}, "{match[2]}", {match[1] is not None}, {in_oneof})'
                )
            if row is None:
                raise ValueError(f"proto/draft.proto: not a field: {line}")
            rows.append(f"        {row},")
        text = "\n".join([f'    "{name}": (', *rows, "    ),"])
        (enums if kind == "enum" else messages).append(text)
    return "\n".join(
        [
            '"""Generated from proto/draft.proto by generate.py; never edited by hand."""',
            "",
            f'PACKAGE = "{package}"',
            "",
            "MESSAGES: dict[str, tuple[tuple[str, int, str, bool, bool], ...]] = {",
            *messages,
            "}",
            "",
            "ENUMS: dict[str, tuple[tuple[str, int], ...]] = {",
            *enums,
            "}",
            "",
        ]
    )


def outputs() -> dict[Path, str]:
    """What each generated file should hold."""
    return {
        PACKAGE / "abi.py": abi_module((ROOT / "assembly" / "abi.ts").read_text("utf-8")),
        PACKAGE / "version.py": version_module((ROOT / "package.json").read_text("utf-8")),
        PACKAGE / "schema.py": schema_module((ROOT / "proto" / "draft.proto").read_text("utf-8")),
    }


def main() -> int:
    """0: written, or current."""
    stale = [path for path, text in outputs().items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale; run `python native/foretoken_vllm/generate.py`")
        return 1 if stale else 0
    for path in stale:
        path.write_text(outputs()[path], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
