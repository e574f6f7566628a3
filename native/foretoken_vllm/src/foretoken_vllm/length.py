"""How many draft tokens each request of a step gets under the second runner: the same number for all, by vLLM's rule.

Of the lengths that may be chosen, the one that makes the most tokens in the time of such a step. What was not measured
is a guess in favour of drafts, so it is soon measured, and now and then two steps have another length than the best: so
nothing wrong stays. The scheduler takes the length from a table by batch size; where it is in another process, the
length is the configured one. Where a head drafts too, how many of the tokens it is asked for is chosen with the length.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from math import log2
from operator import mul
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
# A step's time over that of one without a head, for each token that the head is asked for, where that was not measured.
_PASS = 1 / 24
# A length, and how many of its tokens a head is asked for.
Option = tuple[int, int]


def best_option(
    times: Mapping[Option, float], survival: Callable[[int], Sequence[float]], requests: int, tracked: int
) -> Option:
    """Makes the most tokens a second. `times` are those of a step; `tracked` of the requests have drafts."""
    survivals = {asked: survival(asked) for _, asked in times}
    return max(times, key=lambda one: (requests + tracked * sum(survivals[one[1]][: one[0]])) / times[one])


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


def _time_of(known: Mapping[int, Mapping[float, float]], rows: float, asked: int) -> float:
    """By what a head was asked for, then by rows; where it was never asked for as much, by the nearest number."""
    nearest = min(known, key=lambda one: abs(one - asked), default=0)
    return time_at(known.get(nearest, {}), rows) * (1 + asked * _PASS) / (1 + nearest * _PASS)


class StepTimes:
    """What steps took, by size (the requests, four sizes to an octave), rows, and tokens that a head was asked for.

    Other load, or longer contexts, make all steps slower. So lengths are compared where one follows the other: a step's
    time is divided by the pace of those before, and only the first steps of a length count.
    """

    def __init__(self) -> None:
        self.error = 0.0
        """How far steps were of late from what was expected, as a part of that."""
        self._us: dict[int, dict[tuple[float, int], float]] = defaultdict(dict)
        self._kept: dict[tuple[int, float, int], list[float]] = defaultdict(list)
        self._paces: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_STEPS_KEPT))
        # The steps in which a size, and one with as many rows and asked for as much, was last seen.
        self._seen: dict[tuple[int, float, int], int] = defaultdict(int)
        self._steps = 0
        self._expected: dict[int, dict[Option, float]] = {}

    def observe(self, requests: int, length: int, us: float, asked: int = 0) -> None:
        self._steps += 1
        self._expected.clear()
        size, rows = _rows(requests, length)
        kept, paces, known = self._kept[size, rows, asked], self._paces[size], self._us[size].get((rows, asked))
        if self._steps - self._seen[size, 0, 0] > _ABSENT:
            paces.clear()
            paces.extend([us / known] if known else [])
        if known and self._steps - self._seen[size, rows, asked] > _ABSENT:
            kept[:] = [known]
        self._seen[size, 0, 0] = self._seen[size, rows, asked] = self._steps
        pace = median(paces or [1.0])
        if known:
            self.error += 0.02 * (min(1.0, abs(us / known / pace - 1)) - self.error)
        if known and len(kept) == _STEPS_KEPT:
            paces.append(us / known)
            return
        kept.append(us / pace)
        if len(kept) >= _STEPS_KNOWN:
            # The lower one of two: a pause only makes a step longer.
            self._us[size][rows, asked] = sorted(kept)[(len(kept) - 1) // 2]

    def expected(self, requests: int, options: Iterable[Option]) -> dict[Option, float]:
        """Over the pace."""
        size, _ = _rows(requests, 0)
        if size not in self._expected:
            known: dict[int, dict[float, float]] = defaultdict(dict)
            # Of as many rows, those of the size that is most like this one.
            for of in sorted(self._us, key=lambda of: -abs(of - size)):
                for (rows, asked), us in self._us[of].items():
                    known[asked][rows] = us
            self._expected[size] = {one: _time_of(known, _rows(requests, one[0])[1], one[1]) for one in options}
        return self._expected[size]

    def since(self, requests: int, option: Option) -> int:
        """Steps since the last one like that."""
        size, rows = _rows(requests, option[0])
        return self._steps - self._seen[size, rows, option[1]]


def _rows(requests: int, length: int) -> tuple[int, float]:
    """The size of a batch, and the rows of a step."""
    size = round(4 * log2(requests))
    return size, float(2 ** (size / 4) * (length + 1))


class Rates:
    """Of the requests' steps that accepted all draft tokens before k: how many had a k-th one, and accepted it."""

    def __init__(self, longest: int) -> None:
        self.tried = [0.0] * longest
        self.passed = [0.0] * longest

    def add(self, tried: Sequence[int], passed: Sequence[int]) -> None:
        """Of one step."""
        self.tried = [known + more for known, more in zip(self.tried, tried, strict=True)]
        self.passed = [known + more for known, more in zip(self.passed, passed, strict=True)]

    def learn(self) -> None:
        """Every few steps."""
        for k, tried in enumerate(self.tried):
            if tried > _TRIED_MIN:
                part = min(_TRIED_MAX, max(_TRIED_MIN, 0.9 * tried)) / tried
                self.tried[k] *= part
                self.passed[k] *= part

    def shares(self) -> list[float]:
        """By place; where few were verified, as likely as at the one before."""
        rate, found = _RATE, []
        for tried, passed in zip(self.tried, self.passed, strict=True):
            rate = (passed + _RATE_WEIGHT * rate) / (tried + _RATE_WEIGHT)
            found.append(rate)
        return found


class LengthBudget:
    """Of one thread; `step_time` may be read by others."""

    def __init__(
        self, lengths: tuple[int, ...], faults: Faults, asks: Callable[[int], Iterable[int]] = lambda _length: (0,)
    ) -> None:
        """`lengths` may be chosen; they ascend. `asks`: how many of a length's tokens a head may be asked for."""
        self.step_time = StepTimes()
        self.lengths = lengths
        self._options = [(length, asked) for length in lengths for asked in asks(length)]
        # Draft tokens that the sidecar allows in a step; None: any number.
        self.allowed: int | None = None
        self.length, self.asked = self._options[-1]
        self._faults = faults
        # Where the head was asked for the token, and where it was not.
        self.of_head, self.of_table = Rates(lengths[-1]), Rates(lengths[-1])
        self._original: Any = None
        self._has_original = False
        self._steps = 0
        self._other = self._options[-1]
        self._other_at = _OTHER_FIRST
        self._other_until = 0

    def wants_drafts(self) -> bool:
        """Tables are made for every step: the device may need them although this one has no drafts."""
        return True

    def probability_min(self, _requests: int) -> float:
        """Of a node of a table."""
        return 0.01

    def observe(self, requests: int, drafted: int, us: float, asked: int = 0) -> None:
        """A step without prefill took `us`."""
        length = drafted // max(1, requests)
        if length in self.lengths and 0 < requests * (length + 1) == requests + drafted:
            self.step_time.observe(requests, length, us, asked)

    def accept(self, verified: int, accepted: int, times: int = 1, asked: int = 0) -> None:
        """Of the `verified` tokens of a request in one step, the first `accepted` were right; `times` over.

        Where a head was asked for some, those of the others are known from what was noted.
        """
        rates = self.of_head if asked > 0 else self.of_table
        verified = min(verified, asked or verified)
        places = range(len(rates.tried))
        tried = [times * (k < min(verified, accepted + 1)) for k in places]
        rates.add(tried, [times * (k < min(verified, accepted)) for k in places])

    def learn(self) -> None:
        """Every few steps."""
        self.of_head.learn()
        self.of_table.learn()

    def survival(self, asked: int = 0) -> list[float]:
        """That all draft tokens up to each are accepted, if the head is asked for the first `asked`."""
        return list(accumulate(self.of_head.shares()[:asked] + self.of_table.shares()[asked:], mul))

    def choose(self, requests: int, tracked: int, *, gives_up: bool = False) -> int:
        """The length for the steps to come, `tracked` of the requests drafted for; `gives_up`: the configured one."""
        self._steps += 1
        wanted = self._options[-1] if gives_up else self._options[0]
        length, self.asked = self._wanted(requests, tracked) if tracked > 0 and not gives_up else wanted
        if self.allowed is not None:
            most = min(length, self.allowed // max(1, requests))
            length = max((one for one in self.lengths if one <= most), default=self.lengths[0])
        self.length = length
        return length

    def _wanted(self, requests: int, tracked: int) -> Option:
        times = self.step_time.expected(requests, self._options)
        best = best_option(times, self.survival, requests, tracked)
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
