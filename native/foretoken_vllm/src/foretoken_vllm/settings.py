"""The plugin's settings: `--additional-config '{"foretoken": {...}}'`, over the environment, over the defaults.

An invalid setting is logged once and keeps its default: vLLM never fails to start because of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .faults import Faults

_ENV_PREFIX = "FORETOKEN_"
_WANTED = ("DRAFT_URL", "REPAIR", "STATS_FILE", "DRAFTS", "BESIDE", "EXACT")
# Of the speculative configuration of servers that the plugin drafts for under the second runner.
SPECULATOR = "foretoken_vllm.speculator"


@dataclass(frozen=True, slots=True)
class Settings:
    """Environment names are these in capitals behind FORETOKEN_: FORETOKEN_DRAFT_URL, FORETOKEN_CORE_MB."""

    draft_url: str = ""
    """`ws://HOST:PORT/v1/draft`; without it drafts come from this engine's own responses alone."""
    token: str = ""
    """The sidecar's API token, where it has one."""
    engine: str = ""
    """What the sidecar calls this engine."""
    drafts: int = 1
    """0: tokens are shared, nothing is drafted."""
    beside: int = 0
    """1: a head that the server names drafts, and tables replace and lengthen what it drafts."""
    exact: int = 0
    """1: a response has the same tokens drafted or not, in chunks or in one piece."""
    probability_min: float = 0.0
    """Minimum acceptance probability of a draft token's path; 0: derived from measured step times."""
    core_mb: int = 512
    """Memory of the suffix indexes."""
    logs_mb: int = 256
    """Memory of the token logs that are kept to be sent again."""
    groups_max: int = 1024
    """Groups kept; one more drops the one that was used longest ago."""
    ttl_s: int = 900
    """Seconds after which a group without running requests is dropped."""
    flush_ms: int = 20
    """Between two sends to the draft server."""
    fetch_ms: int = 50
    """Between two questions to the draft server for what siblings made elsewhere."""
    stats_file: str = ""
    """Counters as JSON, rewritten every two seconds."""


_BOUNDS: dict[str, tuple[float, float]] = {
    "drafts": (0, 1),
    "beside": (0, 1),
    "exact": (0, 1),
    "probability_min": (0, 1),
    "core_mb": (8, 3840),
    "logs_mb": (1, 65536),
    "groups_max": (1, 65536),
    "ttl_s": (1, 86_400),
    "flush_ms": (1, 10_000),
    "fetch_ms": (1, 60_000),
}


def _read(name: str, default: object, value: object) -> object:
    """The value as the default's type. Raises ValueError, with the bounds in its text."""
    if isinstance(default, str):
        if isinstance(value, str):
            return value
        raise ValueError(f"{value!r} is no text")
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{value!r} is no number")
    number = float(value) if isinstance(default, float) else int(value)
    low, high = _BOUNDS[name]
    if not low <= number <= high:
        raise ValueError(f"{value!r} is not in [{low}, {high}]")
    return number


def load(additional: object, faults: Faults, environment: Mapping[str, str] = os.environ) -> Settings:
    """`additional` is `vllm_config.additional_config`, whatever it is."""
    given: dict[str, Any] = {}
    for field in fields(Settings):
        value = environment.get(_ENV_PREFIX + field.name.upper())
        if value:
            given[field.name] = value
    own = additional.get("foretoken") if isinstance(additional, Mapping) else None
    if isinstance(own, Mapping):
        given.update({str(key): value for key, value in own.items()})
    defaults = {field.name: getattr(Settings(), field.name) for field in fields(Settings)}
    taken: dict[str, Any] = {}
    for name, value in given.items():
        try:
            if name not in defaults:
                raise ValueError("there is no such setting")
            taken[name] = _read(name, defaults[name], value)
        except ValueError as error:
            faults.add(f"setting {name}", error)
    return replace(Settings(), **taken)


def is_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """The general plugin is inert in every vLLM of the environment that is not configured for it."""
    return any(environment.get(_ENV_PREFIX + name) for name in _WANTED)


def is_cpu() -> bool:
    """That the models of this process run on. Raises ImportError: there is no vLLM."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def is_older(major: int, minor: int) -> bool:
    """Than that release of vLLM. A version that has no number counts as the newest."""
    found = re.match(r"(\d+)\.(\d+)", vllm_version())
    return found is not None and (int(found[1]), int(found[2])) < (major, minor)


def vllm_version() -> str:
    """As its package has it."""
    try:
        return version("vllm")
    except PackageNotFoundError:
        return "unknown"
