"""Engines that are made up: what their steps take, other load on their machine, and how likely drafts are accepted."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

Time = Callable[[int, int], float]
Load = Callable[[random.Random, float], float]

# Microseconds of a step of some requests and draft tokens. As measured: vLLM on a CPU with the bundled model and with
# the priced one (docs/PLUGIN.md). As imagined: a GPU where rows are free up to 150; dear rows.
ENGINES: dict[str, Time] = {
    "bundled": lambda n, k: 7500 + 190 * n + 220 * k + (240 + 50 * n if k else 0),
    "priced": lambda n, k: 38_000 + 3000 * n + 3000 * k + (1000 if k else 0),
    "gpu": lambda n, k: max(9000, 60 * (n + k)) + 10 * n + (800 if k else 0),
    "dear": lambda n, k: 1000 + 3000 * n + 3000 * k + (300 if k else 0),
}

# Factor of a step that begins at a time in seconds.
LOADS: dict[str, Load] = {
    "calm": lambda _chance, _at: 1.0,
    "outliers": lambda chance, _at: 2.6 if chance.random() < 0.3 else 1.0,
    "drift": lambda _chance, at: 1.8 + 0.8 * math.sin(at / 40),
    "phases": lambda _chance, at: 2.6 if int(at / 3) % 2 else 1.0,
}


def drafts(chance: random.Random, requests: int, skill: float) -> list[float]:
    """Probabilities of the paths of a step's drafts: Beta distributed by draft (bench/lab/simulate/speculation.ts)."""
    found: list[float] = []
    for _ in range(requests):
        one, path = chance.betavariate(1.6 * skill, 1.6 * (1 - skill)), 1.0
        for _ in range(16):
            path *= one
            if path < 0.06:
                break
            found.append(path)
    return found


def best_speed(time: Time, requests: int, probabilities: list[float]) -> float:
    """Tokens a microsecond of who knows what steps take."""
    tokens, best = float(requests), requests / time(requests, 0)
    for count, probability in enumerate(sorted(probabilities, reverse=True), 1):
        tokens += probability
        best = max(best, tokens / time(requests, count))
    return best
