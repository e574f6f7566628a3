"""What drafting costs and what a draft token is worth, from the engine's own step times.

StepCost fits the time of a step to its rows, so that a draft token is verified only where that pays (the rule of
src/draft/budget.ts). Guard rests drafting that costs more of the step's time than was allowed.
"""

from __future__ import annotations

REFERENCE_REQUESTS = 32
PROBABILITY_FLOOR = 0.06
PROBABILITY_CEILING = 0.7
# Until anything is known: on GPUs it loses little, and where rows are dear the first steps do not cost much.
PROBABILITY_START = 0.3
_DECAY = 0.99
_OBSERVED_MIN = 30


class StepCost:
    """Least squares of a step's time over its rows, requests and draft tokens alike: step = a + b * rows.

    Older steps are forgotten with a half-life of 69 steps. A fit that tells the two kinds of rows apart needs them to
    vary apart, which they seldom do: where they did not, it took drafts for nothing.

    A row of time b that is accepted with probability p makes the engine faster while p / b is more than the tokens a
    microsecond that it makes already: with the drafts of late, or without any if that is more.
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._requests = 0.0
        self._rows = 0.0
        self._made = 0.0
        self._us = 0.0
        self._rows_rows = 0.0
        self._rows_us = 0.0
        self._observed = 0

    def observe(self, requests: int, drafted: int, made: int, us: float) -> None:
        """A step without prefill took `us`, for `requests` requests and `drafted` draft tokens, and made `made`."""
        rows = requests + drafted
        if self._observed >= _OBSERVED_MIN and us > 5 * self._us / self._weight:
            return
        self._observed += 1
        self._weight = _DECAY * self._weight + 1
        self._requests = _DECAY * self._requests + requests
        self._rows = _DECAY * self._rows + rows
        self._made = _DECAY * self._made + made
        self._us = _DECAY * self._us + us
        self._rows_rows = _DECAY * self._rows_rows + rows * rows
        self._rows_us = _DECAY * self._rows_us + rows * us

    def probability_min(self, requests: int) -> float:
        """Least acceptance that pays for one more row in a batch of `requests`: b times its tokens a microsecond."""
        if self._observed < _OBSERVED_MIN or requests == 0:
            return PROBABILITY_START
        mean_rows = self._rows / self._weight
        mean_us = self._us / self._weight
        variance = self._rows_rows / self._weight - mean_rows * mean_rows
        if variance < 1:
            return PROBABILITY_FLOOR
        slope = max(0.0, (self._rows_us / self._weight - mean_rows * mean_us) / variance)
        plain_us = mean_us + slope * (requests - mean_rows)
        if plain_us <= 0:
            return PROBABILITY_CEILING
        # Rows and tokens of a request are what they were of late, whatever the size of the batch.
        us = mean_us + slope * (requests * self._rows / self._requests - mean_rows)
        speed = requests * max(1 / plain_us, self._made / self._requests / us)
        return min(max(slope * speed, PROBABILITY_FLOOR), PROBABILITY_CEILING)


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
