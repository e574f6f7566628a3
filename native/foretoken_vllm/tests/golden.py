"""The golden vectors that the other host wrote (scripts/gen-golden.ts)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "test" / "golden"


def core_vectors() -> dict[str, Any]:
    """By name: operations on the core, with what came of them."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((GOLDEN / "core").glob("*.json"))}


def frames() -> list[Any]:
    """Frames of the draft protocol, with what they say."""
    found: list[Any] = json.loads((GOLDEN / "draft" / "frames.json").read_text("utf-8"))
    return found
