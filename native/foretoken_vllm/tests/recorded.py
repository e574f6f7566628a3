"""The controller of draft lengths on recorded step times, against the best fixed length of 0, 1, 3, 7 and 15.

`python tests/recorded.py` prints a table: tokens a second over those of the best fixed length, from step 200 on (the
worst of three runs), and the share of exploring steps.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from foretoken_vllm.faults import Faults
from foretoken_vllm.length import LengthBudget

LENGTHS = (0, 1, 3, 7, 15)
REQUESTS = (1, 8, 32, 128, 256)
FIRST = 200
# Milliseconds of a step by its requests and length.
Ms = Callable[[int, int], float]

# By rows: one H100, vLLM 0.32's second runner, 7.6 G parameters (docs/experiments/second-runner.md).
_H100 = ((1, 6.88), (9, 7.19), (72, 7.61), (288, 9.30))
# The same without drafts and with 8, by requests.
_H100_OWN = {1: (6.88, 7.19), 8: (7.33, 7.61), 32: (7.27, 9.30)}
# More rows than were measured: two operations a parameter and row, at 600 TFLOP/s.
_H100_ROW = 0.025
# By rows: vLLM's first runner on a CPU.
_BUNDLED = ((1, 4.1), (2, 9.9), (4, 10.2), (6, 10.9), (8, 16.2), (16, 21.0))
_PRICED = ((1, 23.0), (4, 26.0), (16, 37.0), (32, 54.0))


def between(points: Sequence[tuple[float, float]], at: float, row: float) -> float:
    """On the line between two neighbours; beyond the last one by what a row takes."""
    for (x, y), (right, above) in pairwise(points):
        if at <= right:
            return y + (above - y) * (at - x) / (right - x)
    return points[-1][1] + row * (at - points[-1][0])


def h100(requests: int, length: int) -> float:
    if requests in _H100_OWN and length <= 8:
        plain, eight = _H100_OWN[requests]
        return plain + (eight - plain) * length / 8
    return between(_H100, requests * (length + 1), _H100_ROW)


ENGINES: dict[str, Ms] = {
    "H100": h100,
    "CPU, bundled model": lambda requests, length: between(_BUNDLED, requests * (length + 1), 0.6),
    "CPU, priced model": lambda requests, length: between(_PRICED, requests * (length + 1), 1.06),
    # Imagined: rows are free up to 48.
    "small GPU": lambda requests, length: max(9.0, 0.1875 * requests * (length + 1)),
}


@dataclass(frozen=True)
class Acceptance:
    """Of each draft token behind accepted ones: in `share` of the requests' steps `likely`, else `rest`."""

    share: float
    likely: float
    rest: float

    def tokens(self, length: int) -> float:
        return sum(self.share * self.likely**k + (1 - self.share) * self.rest**k for k in range(length + 1))

    def draw(self, chance: random.Random, length: int) -> int:
        rate = self.likely if chance.random() < self.share else self.rest
        accepted = 0
        while accepted < length and chance.random() < rate:
            accepted += 1
        return accepted


ACCEPTANCES = {
    # As measured on the H100 at one request, and at 8 and 32.
    "0.70 of 8": Acceptance(1, 0.413, 0),
    "1.13 of 8": Acceptance(1, 0.533, 0),
    "often all": Acceptance(0.4, 0.95, 0.2),
    "most": Acceptance(1, 0.9, 0),
    "hardly any": Acceptance(1, 0.1, 0),
}


@dataclass
class Run:
    """Tokens a second over those of the best length, without the noise; the share of exploring steps."""

    ratio: float
    explored: float
    lengths: list[int]


def run(
    ms: Ms,
    acceptance_at: Callable[[int], Acceptance],
    requests_at: Callable[[int], int],
    *,
    seed: int = 1,
    steps: int = 1000,
    first: int = FIRST,
    load: Callable[[int], float] = lambda _step: 1.0,
) -> Run:
    """Steps vary by 3 %, and one in fifty takes ten times as long.

    A length that is chosen runs two steps later, and steps are reported 16 at a time, as in a server.
    """
    chance = random.Random(seed)
    budget = LengthBudget(LENGTHS, Faults())
    under_way = deque([LENGTHS[-1]] * 2)
    ledger: list[tuple[int, int, float]] = []
    took = best = 0.0
    explored = 0
    lengths = []
    for step in range(steps):
        requests, acceptance = requests_at(step), acceptance_at(step)
        under_way.append(budget.choose(requests, requests))
        explored += budget._steps < budget._other_until
        length = under_way.popleft()
        lengths.append(length)
        time = ms(requests, length)
        pause = 10 if chance.random() < 0.02 else 1
        ledger.append((requests, requests * length, 1000 * time * load(step) * chance.gauss(1, 0.03) * pause))
        if length > 0:
            for accepted, times in Counter(acceptance.draw(chance, length) for _ in range(requests)).items():
                budget.accept(length, accepted, times)
        if len(ledger) == 16:
            for observed in ledger:
                budget.observe(*observed)
            budget.learn()
            ledger.clear()
        if step >= first:
            took += time
            best += acceptance.tokens(length) / max(acceptance.tokens(k) / ms(requests, k) for k in LENGTHS)
    return Run(best / took, explored / steps, lengths)


def worst(ms: Ms, acceptance: Acceptance, requests: int) -> Run:
    runs = [run(ms, lambda _step: acceptance, lambda _step: requests, seed=seed) for seed in range(3)]
    return min(runs, key=lambda one: one.ratio)


def main() -> None:
    print(f"| step times | accepted | {' | '.join(map(str, REQUESTS))} |\n|---|---|{'---|' * len(REQUESTS)}")
    for engine, ms in ENGINES.items():
        for name, acceptance in ACCEPTANCES.items():
            found = [worst(ms, acceptance, requests) for requests in REQUESTS]
            cells = [f"{one.ratio:.3f} ({100 * one.explored:.1f} %)" for one in found]
            print(f"| {engine} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
