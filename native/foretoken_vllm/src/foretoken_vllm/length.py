"""How many draft tokens each request of a step gets under the second runner: the same number for all, by vLLM's rule.

Of the lengths that may be chosen, the one that makes the most tokens in the time of such a step. What was not measured
is a guess in favour of drafts, so it is soon measured, and now and then two steps have another length than the best: so
nothing wrong stays. The scheduler takes the length from a table by batch size; where it is in another process, the
length is the configured one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from math import log2
from statistics import median
from typing import Any

from . import engine
from .faults import Faults

# Steps, since a length began to run, that its time is the median of; and how many make it known.
_STEPS_KEPT = 16
_STEPS_KNOWN = 2
# Steps without a length after which its time may have changed.
_ABSENT = 128
# Steps from one time that another length runs, for as many as make it known, to the next: below 1 % of the steps and
# of the time. None while Triton compiles.
_OTHER_EVERY = 256
_OTHER_FIRST = 64
# Part of draft tokens that is accepted as long as nothing was seen, and the requests' steps that it weighs.
_RATE = 0.8
_RATE_WEIGHT = 8.0
# Requests' steps that the acceptance of a draft token is known from: while it is verified, and when it no longer is.
_TRIED_MAX = 500.0
_TRIED_MIN = 8.0


def best_length(times: Mapping[int, float], survival: Sequence[float], requests: int, tracked: int) -> int:
    """Makes the most tokens a second. `times` are those of a step, by length; `tracked` of the requests have drafts."""
    return max(times, key=lambda length: (requests + tracked * sum(survival[:length])) / times[length])


def row_cost(rows: float) -> float:
    """A step's time over that of one row where nothing was measured: as on an H100 with 7.6 G parameters.

    4 % more at 9 rows and at 72, 28 % at 288; beyond, multiplying takes longer than reading the weights.
    """
    return max(1 + rows / 1000, rows / 250)


def time_at(known: Mapping[float, float], rows: float) -> float:
    """A step's time by its rows: between the next ones in `known`; where these are far, as if rows cost little."""
    if rows in known or not known:
        return known.get(rows, row_cost(rows))
    below = max((count for count in known if count < rows), default=min(known))
    above = min((count for count in known if count > rows), default=below)
    if below < rows < above <= 2 * below:
        return known[below] + (known[above] - known[below]) * (rows - below) / (above - below)
    guess = known[below] * row_cost(rows) / row_cost(below)
    return min(guess, known[above]) if above > below else guess


class StepTimes:
    """What steps took, by size (the requests, four sizes to an octave) and rows.

    Other load, or longer contexts, make all steps slower. So lengths are compared where one follows the other: a step's
    time is divided by the pace of those before, and only the first steps of a length count.
    """

    def __init__(self) -> None:
        self.error = 0.0
        """How far steps were of late from what was expected, as a part of that."""
        self._us: dict[int, dict[float, float]] = defaultdict(dict)
        self._kept: dict[tuple[int, float], list[float]] = defaultdict(list)
        self._paces: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_STEPS_KEPT))
        # The steps in which a size, and one with as many rows, was last seen.
        self._seen: dict[tuple[int, float], int] = defaultdict(int)
        self._steps = 0
        self._expected: dict[int, dict[int, float]] = {}

    def observe(self, requests: int, length: int, us: float) -> None:
        self._steps += 1
        self._expected.clear()
        size, rows = _rows(requests, length)
        kept, paces, known = self._kept[size, rows], self._paces[size], self._us[size].get(rows)
        if self._steps - self._seen[size, 0] > _ABSENT:
            paces.clear()
            paces.extend([us / known] if known else [])
        if known and self._steps - self._seen[size, rows] > _ABSENT:
            kept[:] = [known]
        self._seen[size, 0] = self._seen[size, rows] = self._steps
        pace = median(paces or [1.0])
        if known:
            self.error += 0.02 * (min(1.0, abs(us / known / pace - 1)) - self.error)
        if known and len(kept) == _STEPS_KEPT:
            paces.append(us / known)
            return
        kept.append(us / pace)
        if len(kept) >= _STEPS_KNOWN:
            # The lower one of two: a pause only makes a step longer.
            self._us[size][rows] = sorted(kept)[(len(kept) - 1) // 2]

    def expected(self, requests: int, lengths: Sequence[int]) -> dict[int, float]:
        """By length, over the pace."""
        size, _ = _rows(requests, 0)
        if size not in self._expected:
            known: dict[float, float] = {}
            # Of as many rows, those of the size that is most like this one.
            for of in sorted(self._us, key=lambda of: -abs(of - size)):
                known |= self._us[of]
            self._expected[size] = {length: time_at(known, _rows(requests, length)[1]) for length in lengths}
        return self._expected[size]

    def since(self, requests: int, length: int) -> int:
        """Steps since the last one of that length."""
        return self._steps - self._seen[_rows(requests, length)]


def _rows(requests: int, length: int) -> tuple[int, float]:
    """The size of a batch, and the rows of a step."""
    size = round(4 * log2(requests))
    return size, float(2 ** (size / 4) * (length + 1))


class LengthBudget:
    """Of one thread; `step_time` may be read by others."""

    def __init__(self, lengths: tuple[int, ...], faults: Faults) -> None:
        """`lengths` may be chosen; they ascend."""
        self.step_time = StepTimes()
        self.lengths = lengths
        # Draft tokens that the sidecar allows in a step; None: any number.
        self.allowed: int | None = None
        self.length = lengths[-1]
        self._faults = faults
        # Of the requests' steps that accepted all draft tokens before k: those that verified k, and that accepted it.
        self._tried = [0.0] * lengths[-1]
        self._passed = [0.0] * lengths[-1]
        self._original: Any = None
        self._has_original = False
        self._steps = 0
        self._other = lengths[-1]
        self._other_at = _OTHER_FIRST
        self._other_until = 0

    def wants_drafts(self) -> bool:
        """Tables are made for every step: the device may need them although this one has no drafts."""
        return True

    def probability_min(self, _requests: int) -> float:
        """Of a node of a table."""
        return 0.01

    def observe(self, requests: int, drafted: int, us: float) -> None:
        """A step without prefill took `us`."""
        length = drafted // max(1, requests)
        if length in self.lengths and 0 < requests * (length + 1) == requests + drafted:
            self.step_time.observe(requests, length, us)

    def accept(self, verified: int, accepted: int, times: int = 1) -> None:
        """Of the `verified` tokens of a request in one step, the first `accepted` were right; `times` over."""
        for k in range(min(verified, accepted + 1, len(self._tried))):
            self._tried[k] += times
            self._passed[k] += times * (k < accepted)

    def learn(self) -> None:
        """Every few steps."""
        for k, tried in enumerate(self._tried):
            if tried > _TRIED_MIN:
                part = min(_TRIED_MAX, max(_TRIED_MIN, 0.9 * tried)) / tried
                self._tried[k] *= part
                self._passed[k] *= part

    def survival(self) -> list[float]:
        """That all draft tokens up to each are accepted; where few were verified, each as likely as the one before."""
        rate, whole, found = _RATE, 1.0, []
        for tried, passed in zip(self._tried, self._passed, strict=True):
            rate = (passed + _RATE_WEIGHT * rate) / (tried + _RATE_WEIGHT)
            whole *= rate
            found.append(whole)
        return found

    def choose(self, requests: int, tracked: int) -> int:
        """The length for the steps to come; `tracked` of the requests have tables."""
        self._steps += 1
        length = self._wanted(requests, tracked) if tracked > 0 else self.lengths[0]
        if self.allowed is not None:
            most = min(length, self.allowed // max(1, requests))
            length = max((one for one in self.lengths if one <= most), default=self.lengths[0])
        self.length = length
        return length

    def _wanted(self, requests: int, tracked: int) -> int:
        times = self.step_time.expected(requests, self.lengths)
        best = best_length(times, self.survival(), requests, tracked)
        if self._steps >= self._other_at:
            # What ran least lately; the seldomer, the longer it takes.
            self._other = max(times, key=lambda one: (one != best, self.step_time.since(requests, one) / times[one]))
            self._other_at = self._steps + int(_OTHER_EVERY * max(1.0, times[self._other] / times[best]))
            self._other_until = self._steps + _STEPS_KNOWN
        return self._other if self._steps < self._other_until else best

    def apply(self) -> None:
        """Tells the scheduler of this process, if it is here. Never raises."""
        try:
            scheduler = engine.scheduler()
            if scheduler is None:
                return
            if not self._has_original:
                self._has_original, self._original = True, scheduler.dynamic_sd_lookup
            # vLLM pads requests that begin only where it has no table.
            wanted: Any = self._original
            if self.length != scheduler.num_spec_tokens:
                wanted = [self.length] * (scheduler.scheduler_config.max_num_seqs + 1)
            if scheduler.dynamic_sd_lookup != wanted:
                scheduler.dynamic_sd_lookup = wanted
        except Exception as error:  # noqa: BLE001 - the configured number stays
            self._faults.add("length", error)
