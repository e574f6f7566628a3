"""Puts the repository's build/core.wasm into the wheel. Refuses a core whose ABI is not the package's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface  # type: ignore[import-not-found,unused-ignore]

CORE = Path(__file__).resolve().parents[2] / "build" / "core.wasm"


class CoreHook(BuildHookInterface):  # type: ignore[misc,unused-ignore]
    """One file more, from outside the package's folder."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """An editable install takes the core from the checkout, so nothing is copied for it."""
        if version == "editable":
            return
        if not CORE.is_file():
            raise FileNotFoundError(f"{CORE} is missing; run `npm run build` in the repository")
        build_data["force_include"][str(CORE)] = "foretoken_vllm/core.wasm"
