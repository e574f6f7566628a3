"""Puts the compiled program, its files and the vLLM plugin into the wheel, and names the platform it is for.

scripts/wheel.ts compiles the program and sets FORETOKEN_PROGRAM_DIR and FORETOKEN_WHEEL_PLATFORM.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface  # type: ignore[import-not-found,unused-ignore]

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = ROOT / "native" / "foretoken_vllm" / "src" / "foretoken_vllm"
CORE = ROOT / "build" / "core.wasm"


class ProgramHook(BuildHookInterface):  # type: ignore[misc,unused-ignore]
    """Files from outside the package's folder."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """An editable install takes everything from the checkout."""
        if version == "editable":
            return
        program = os.environ.get("FORETOKEN_PROGRAM_DIR")
        platform = os.environ.get("FORETOKEN_WHEEL_PLATFORM")
        if program is None or platform is None:
            raise RuntimeError("the wheel holds a compiled program; build it in the repository with: npm run wheel")
        include: dict[str, str] = build_data["force_include"]
        for path in sorted(Path(program).rglob("*")):
            if path.is_file():
                include[str(path)] = f"foretoken/program/{path.relative_to(program)}"
        for path in sorted(PLUGIN.iterdir()):
            if path.suffix == ".py" or path.name == "py.typed":
                include[str(path)] = f"foretoken_vllm/{path.name}"
        include[str(CORE)] = "foretoken_vllm/core.wasm"
        include[str(ROOT / "LICENSE")] = "foretoken/LICENSE"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
