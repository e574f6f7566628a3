"""What drafting costs and what a draft token is worth, from the engine's own step times.

StepCost fits the time of a step to what was in it, so that a draft token is verified only where that pays (the rule of
src/draft/budget.ts). Guard rests drafting that costs more of the step's time than was allowed.
"""

from __future__ import annotations

REFERENCE_REQUESTS = 32
# As src/draft/budget.ts: a token near the break-even gains next to nothing.
MARGIN = 1.4
PROBABILITY_FLOOR = 0.06
PROBABILITY_CEILING = 0.7
# Until anything is known: on GPUs it loses little, and where rows are dear the first steps do not cost much.
PROBABILITY_START = 0.3
# Older steps are forgotten with a half-life of 230: step times are noisy, and what a row costs is a small part of them.
_DECAY = 0.997
_OBSERVED_MIN = 30
# Of the variance of drafted tokens, what the number of requests must not explain.
_OWN_SHARE_MIN = 0.02


class StepCost:
    """Least squares of a step's time over its requests and its draft tokens: step = a + b * requests + c * drafted."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._requests = 0.0
        self._drafted = 0.0
        self._us = 0.0
        # Sums of products.
        self._rr = 0.0
        self._dd = 0.0
        self._rd = 0.0
        self._ru = 0.0
        self._du = 0.0
        self._observed = 0

    def observe(self, requests: int, drafted: int, us: float) -> None:
        """A step without prefill took `us` microseconds for `requests` requests and `drafted` draft tokens."""
        if self._observed >= _OBSERVED_MIN and us > 5 * self._us / self._weight:
            return
        self._observed += 1
        self._weight = _DECAY * self._weight + 1
        self._requests = _DECAY * self._requests + requests
        self._drafted = _DECAY * self._drafted + drafted
        self._us = _DECAY * self._us + us
        self._rr = _DECAY * self._rr + requests * requests
        self._dd = _DECAY * self._dd + drafted * drafted
        self._rd = _DECAY * self._rd + requests * drafted
        self._ru = _DECAY * self._ru + requests * us
        self._du = _DECAY * self._du + drafted * us

    def probability_min(self, requests: int) -> float:
        """Least acceptance that pays for one more row in a batch of `requests`: MARGIN * c * B / T."""
        if self._observed < _OBSERVED_MIN or requests == 0:
            return PROBABILITY_START
        weight = self._weight
        mean_requests, mean_drafted, mean_us = self._requests / weight, self._drafted / weight, self._us / weight
        rr = self._rr / weight - mean_requests * mean_requests
        dd = self._dd / weight - mean_drafted * mean_drafted
        rd = self._rd / weight - mean_requests * mean_drafted
        ru = self._ru / weight - mean_requests * mean_us
        du = self._du / weight - mean_drafted * mean_us
        if dd < 1:
            return PROBABILITY_FLOOR
        per_request = 0.0
        if rr < 1e-6:
            per_draft = du / dd
        else:
            own = rr * dd - rd * rd
            if own < _OWN_SHARE_MIN * rr * dd:
                return PROBABILITY_FLOOR
            per_draft = (du * rr - ru * rd) / own
            per_request = max(0.0, (ru * dd - du * rd) / own)
        per_draft = max(0.0, per_draft)
        plain = mean_us + per_request * (requests - mean_requests) - per_draft * mean_drafted
        if plain <= 0:
            return PROBABILITY_CEILING
        wanted = MARGIN * per_draft * requests / plain
        return min(max(wanted, PROBABILITY_FLOOR), PROBABILITY_CEILING)


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
