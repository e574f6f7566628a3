"""What drafting costs and what a draft token is worth, from the engine's own step times.

StepCost fits the time of a step to what was in it, so that a draft token is verified only where that pays (the rule of
src/draft/budget.ts), and a step verifies drafts at all only where they pay for that. Guard rests drafting that costs
more of the step's time than was allowed.
"""

from __future__ import annotations

import math

REFERENCE_REQUESTS = 32
# As src/draft/budget.ts: a token near the break-even gains next to nothing.
MARGIN = 1.4
PROBABILITY_FLOOR = 0.06
PROBABILITY_CEILING = 0.7
# Older steps are forgotten with a half-life of 230: step times are noisy, and what a row costs is a small part of them.
_DECAY = 0.997
_OBSERVED_MIN = 30
# Of the variance of one thing, what the others must not explain.
_OWN_SHARE_MIN = 0.02
# Steps are counted in so many at a time.
_BATCH = 16
# Times the mean, of which a longer step is thought to be.
_LONG = 1.5
# Steps with drafts, and without, that must be remembered: of one in 64 it is 4.7 to 5.7.
_KIND_MIN = 4.0
# One step in so many drafts although that seems not to pay, for that may have changed.
_TRY_EVERY = 64
# One in so many does not draft although that seems to pay, while too few are known that did not.
_SPARE_EVERY = 64
# Standard errors by which any draft is thought to cost less than was found.
_ERRORS = 2.0


class StepCost:
    """What steps cost, by the size of their batch: from one power of two to the next.

    A step's time is no straight line over its requests, and a batch that grows smaller drafts less as well: over all
    sizes together, what is so of small batches would be taken for what drafts cost.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, BatchCost] = {}

    def of(self, requests: int) -> BatchCost:
        """Of batches like one of so many requests."""
        size = requests.bit_length()
        found = self._sizes.get(size)
        if found is None:
            found = self._sizes[size] = BatchCost()
        return found

    def observe(self, requests: int, drafted: int, us: float) -> None:
        """A step without prefill took `us` microseconds for `requests` requests and `drafted` draft tokens."""
        self.of(requests).observe(requests, drafted, us)

    def probability_min(self, requests: int) -> float:
        """Least acceptance that pays for one more row in a batch of `requests`: MARGIN * c * B / T."""
        return self.of(requests).probability_min(requests)

    def is_worth(self, requests: int, drafted: int, expected: float) -> bool:
        """Whether a step should verify `drafted` tokens of which `expected` will be accepted. Once a step."""
        return self.of(requests).is_worth(requests, drafted, expected)


class BatchCost:
    """Least squares of a step's time: a + b * requests + c * drafted + d, the last for steps with any draft."""

    def __init__(self) -> None:
        # Decayed sums of products of (1, requests, drafted, any, us), the upper half by rows.
        self._sums = [0.0] * 15
        self._fresh: list[tuple[int, int, float]] = []
        self._observed = 0
        self._decided = 0
        self._is_short_of_plain = False
        self._means = (0.0, 0.0, 0.0, 0.0)
        self._is_fitted = False
        self.per_request_us = 0.0
        self.per_draft_us = 0.0
        # Less two standard errors: what is not sure to be spent is not counted.
        self.per_step_us = 0.0

    def observe(self, requests: int, drafted: int, us: float) -> None:
        """As StepCost has it."""
        self._fresh.append((requests, drafted, us))
        if len(self._fresh) >= _BATCH:
            self._fit()

    def probability_min(self, requests: int) -> float:
        """As StepCost has it."""
        if not self._is_fitted or requests == 0:
            return PROBABILITY_FLOOR
        plain = self._plain_us(requests)
        if plain <= 0:
            return PROBABILITY_CEILING
        wanted = MARGIN * self.per_draft_us * requests / plain
        return min(max(wanted, PROBABILITY_FLOOR), PROBABILITY_CEILING)

    def is_worth(self, requests: int, drafted: int, expected: float) -> bool:
        """As StepCost has it.

        They should if expected * T / B >= MARGIN * (c * drafted + d). A few steps do otherwise, to learn from.
        """
        if not self._is_fitted or requests == 0:
            return True
        self._decided += 1
        plain = self._plain_us(requests)
        gain = expected * plain / requests
        if gain < MARGIN * (self.per_draft_us * drafted + self.per_step_us):
            return self._decided % _TRY_EVERY == 0
        return not self._is_short_of_plain or self._decided % _SPARE_EVERY != 0

    def _plain_us(self, requests: int) -> float:
        """A step of so many requests and no drafts."""
        mean_requests, mean_drafted, mean_any, mean_us = self._means
        without = mean_us - self.per_draft_us * mean_drafted - self.per_step_us * mean_any
        return without + self.per_request_us * (requests - mean_requests)

    def _fold(self) -> None:
        sums = self._sums
        for requests, drafted, us in self._fresh:
            # A step in which the machine did something else as well says little; one so much longer, nothing.
            mean = sums[4] / sums[0] if self._observed >= _OBSERVED_MIN else us
            if us > 5 * mean:
                continue
            self._observed += 1
            row = (1.0, requests, drafted, 1.0 if drafted > 0 else 0.0, min(us, _LONG * mean))
            at = 0
            for i in range(5):
                for j in range(i, 5):
                    sums[at] = _DECAY * sums[at] + row[i] * row[j]
                    at += 1
        self._fresh.clear()

    def _fit(self) -> None:
        """Solves for b, then for c and d in what the requests do not explain, none of them below 0."""
        self._fold()
        self._is_fitted = False
        if self._observed < _OBSERVED_MIN:
            return
        weight, sr, sd, sa, su, srr, srd, sra, sru, sdd, sda, sdu, saa, sau, suu = self._sums
        r, d, a, u = sr / weight, sd / weight, sa / weight, su / weight
        self._means = (r, d, a, u)
        self._is_short_of_plain = weight - sa < 2 * _KIND_MIN
        self.per_request_us = self.per_draft_us = self.per_step_us = 0.0
        rr = srr / weight - r * r
        dd, da, du = sdd / weight - d * d, sda / weight - d * a, sdu / weight - d * u
        aa, au, uu = saa / weight - a * a, sau / weight - a * u, suu / weight - u * u
        if dd < 1:
            return
        rd, ra, ru = srd / weight - r * d, sra / weight - r * a, sru / weight - r * u
        has_requests = rr >= 1e-6
        whole = dd
        if has_requests:
            dd, da, du = dd - rd * rd / rr, da - rd * ra / rr, du - rd * ru / rr
            aa, au, uu = aa - ra * ra / rr, au - ra * ru / rr, uu - ru * ru / rr
        if dd < _OWN_SHARE_MIN * whole:
            return
        self.per_draft_us = max(0.0, du / dd)
        own = aa - da * da / dd
        if min(sa, weight - sa) >= _KIND_MIN and own > _OWN_SHARE_MIN * aa:
            self._fit_both(weight, dd, da, du, aa, au, uu)
        if has_requests:
            explained = self.per_draft_us * rd + self.per_step_us * ra
            self.per_request_us = max(0.0, (ru - explained) / rr)
        self._is_fitted = True

    def _fit_both(self, weight: float, dd: float, da: float, du: float, aa: float, au: float, uu: float) -> None:
        own = aa - da * da / dd
        per_step = (au - da * du / dd) / own
        per_draft = (du - da * per_step) / dd
        if per_step <= 0:
            return
        if per_draft < 0:
            per_draft, per_step, own = 0.0, max(0.0, au / aa), aa
        rest = max(0.0, uu - per_draft * du - per_step * au)
        self.per_step_us = max(0.0, per_step - _ERRORS * math.sqrt(rest / (weight * own)))
        self.per_draft_us = per_draft


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
