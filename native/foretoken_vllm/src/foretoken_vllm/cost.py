"""Cost of drafting and break-even acceptance of a draft token, from the engine's own step times.

StepCost fits the time of a step to its rows, so that a draft token is verified only if it saves time (the rule of
src/draft/budget.ts). Guard pauses drafting that takes more of the step's time than its limit.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

REFERENCE_REQUESTS = 32
PROBABILITY_FLOOR = 0.06
PROBABILITY_CEILING = 0.7
# Until anything is known: on GPUs it loses little, and where rows are dear the first steps do not cost much.
PROBABILITY_START = 0.3
# Of steps with drafts: a half-life of 69 of them.
_DECAY = 0.99
_OBSERVED_MIN = 30
# Of the steps of one size of batch, of each kind.
_SIZE_DECAY = 0.97
_SIZE_OBSERVED_MIN = 8
# One step in this many drafts nothing, to keep measuring such steps: often at first.
_PLAIN_STEPS = 64
_PLAIN_STEPS_FIRST = 8
# One step in this many drafts although it does not seem to pay. More often, since an error here costs the most: a batch
# that could make twice the tokens makes one a request.
_DRAFT_STEPS = 16


class Worth(NamedTuple):
    """What drafts must bring in a batch of some size, in accepted tokens."""

    probability_min: float
    """Least acceptance of a draft token's path."""
    row: float
    """For each draft token of the step."""
    step: float
    """Beyond that, for a step that has any: vLLM samples it in a longer way."""


class _Steps:
    """Steps of one size of batch and one kind, the older ones forgotten: sums over them."""

    __slots__ = ("made", "observed", "rows", "us", "weight")

    def __init__(self) -> None:
        self.observed = 0
        self.weight = 0.0
        self.rows = 0.0
        self.made = 0.0
        self.us = 0.0

    def observe(self, rows: int, made: int, us: float) -> None:
        self.observed += 1
        self.weight = _SIZE_DECAY * self.weight + 1
        self.rows = _SIZE_DECAY * self.rows + rows
        self.made = _SIZE_DECAY * self.made + made
        self.us = _SIZE_DECAY * self.us + us

    @property
    def is_known(self) -> bool:
        return self.observed >= _SIZE_OBSERVED_MIN

    def mean_us(self) -> float:
        return self.us / self.weight

    def mean_rows(self) -> float:
        return self.rows / self.weight

    def speed(self) -> float:
        """Tokens a microsecond."""
        return self.made / self.us


class StepCost:
    """What rows take, and what a step with drafts takes beyond them that one without does not.

    A row: least squares of the time of steps with drafts, a + b * rows, requests and draft tokens alike, older steps
    forgotten. A fit that tells the two kinds of rows apart needs them to vary apart, which they seldom do: where they
    did not, it took drafts for nothing. The line is steeper than it should be where a request's row is dearer than a
    draft token's, so its slope is bounded by what draft tokens and all that comes with them take in the mean: the
    difference of steps with and without, of batches of about one size. What remains of that is beyond rows.

    A row of time b that is accepted with probability p makes the engine faster while p / b is more than the tokens a
    microsecond that it makes already: with the drafts of late, or without any if that is more.
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._rows = 0.0
        self._us = 0.0
        self._rows_rows = 0.0
        self._rows_us = 0.0
        self._observed = 0
        # By the bits of the number of requests.
        self._with_drafts: defaultdict[int, _Steps] = defaultdict(_Steps)
        self._plain: defaultdict[int, _Steps] = defaultdict(_Steps)
        self._size = 0
        self._worth = Worth(PROBABILITY_START, 0.0, 0.0)
        # Steps that had drafts; when the last was that went without them, and with them.
        self._looked = 0
        self._plain_at = 0
        self._drafted_at = 0

    def observe(self, requests: int, drafted: int, made: int, us: float) -> None:
        """A step without prefill took `us`, for `requests` requests and `drafted` draft tokens, and made `made`."""
        if self._observed >= _OBSERVED_MIN and us > 5 * self._us / self._weight:
            return
        rows = requests + drafted
        kind = self._plain if drafted == 0 else self._with_drafts
        kind[requests.bit_length()].observe(rows, made, us)
        if drafted == 0:
            return
        self._observed += 1
        self._weight = _DECAY * self._weight + 1
        self._rows = _DECAY * self._rows + rows
        self._us = _DECAY * self._us + us
        self._rows_rows = _DECAY * self._rows_rows + rows * rows
        self._rows_us = _DECAY * self._rows_us + rows * us

    def worth(self, requests: int) -> Worth:
        """For the next steps, of `requests` requests; `keeps` uses it."""
        self._size = requests.bit_length()
        self._worth = self._worth_now(requests)
        return self._worth

    def is_of(self, requests: int) -> bool:
        """Whether the last result of `worth` is for batches of about this size."""
        return requests.bit_length() == self._size

    def keeps(self, drafted: int, expected: float) -> bool:
        """Whether the engine is given the step's drafts, of which `expected` tokens will be accepted; once a step."""
        self._looked += 1
        plain_steps = _PLAIN_STEPS if self._plain[self._size].is_known else _PLAIN_STEPS_FIRST
        if self._looked - self._plain_at >= plain_steps:
            keeps = False
        elif self._looked - self._drafted_at >= _DRAFT_STEPS:
            keeps = True
        else:
            keeps = expected >= self._worth.row * drafted + self._worth.step
        if keeps:
            self._drafted_at = self._looked
        else:
            self._plain_at = self._looked
        return keeps

    def _slope_us(self) -> float:
        """Slope of the line; a step without rows takes at least zero time."""
        mean = self._rows / self._weight
        mean_us = self._us / self._weight
        variance = self._rows_rows / self._weight - mean * mean
        if variance < 1:
            return 0.0
        return min(max(0.0, (self._rows_us / self._weight - mean * mean_us) / variance), mean_us / mean)

    def _worth_now(self, requests: int) -> Worth:
        if self._observed < _OBSERVED_MIN or requests == 0:
            return Worth(PROBABILITY_START, 0.0, 0.0)
        row_us = self._slope_us()
        step_us = 0.0
        drafting, plain = self._with_drafts[self._size], self._plain[self._size]
        if plain.is_known:
            speed = plain.speed()
        else:
            # Extrapolated by the line.
            us = self._us / self._weight + row_us * (requests - self._rows / self._weight)
            speed = requests / us
        if drafting.is_known:
            speed = max(speed, drafting.speed())
        if plain.is_known and drafting.is_known:
            more_us = max(0.0, drafting.mean_us() - plain.mean_us())
            more_rows = max(1.0, drafting.mean_rows() - plain.mean_rows())
            row_us = min(row_us, more_us / more_rows)
            step_us = max(0.0, more_us - row_us * more_rows)
        row = row_us * speed
        return Worth(min(max(row, PROBABILITY_FLOOR), PROBABILITY_CEILING), row, step_us * speed)


class Guard:
    """Drafting rests for some steps, twice as many each time, when most of its steps took longer than allowed.

    Most, because on a busy machine the mean is made of the few steps in which the thread was not running. Allowed are
    a number of microseconds, or a share of the engine's own step if that is more: where steps take tenths of a second,
    the same drafting takes longer, for the machine is busy, and matters less.
    """

    STEP_SHARE = 0.03
    REST_MIN = 64
    REST_MAX = 65_536
    SEEN_MIN = 64

    def __init__(self, step_us: float) -> None:
        self._step_us = step_us
        # Share of steps above what was allowed, of the last SEEN_MIN or so.
        self._over = 0.0
        self._seen = 0
        # Steps left of its rest.
        self.rest = 0
        self._rest_next = self.REST_MIN
        self.trips = 0

    def may_draft(self) -> bool:
        """Once a step."""
        if self.rest == 0:
            return True
        self.rest -= 1
        return False

    def observe(self, requests: int, us: float, step_us: float = 0.0) -> None:
        """Drafting took `us` after a step of `step_us`. Not in steps in which it rests."""
        wanted = self._step_us * max(requests, REFERENCE_REQUESTS / 4) / REFERENCE_REQUESTS
        allowed = max(wanted, self.STEP_SHARE * step_us)
        self._seen += 1
        self._over += ((us > allowed) - self._over) / min(self._seen, self.SEEN_MIN)
        if self._seen < self.SEEN_MIN:
            return
        if self._over <= 0.5:
            if self._seen > 16 * self.SEEN_MIN:
                self._rest_next = self.REST_MIN
            return
        self.trips += 1
        self.rest = self._rest_next
        self._rest_next = min(2 * self._rest_next, self.REST_MAX)
        self._seen = 0
        self._over = 0.0
