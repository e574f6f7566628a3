"""How many draft tokens each request of a step gets under the second runner: the same number for all, by vLLM's rule.

The number that makes the most tokens in the time that such a step takes: survival of the first, second, ... draft token
over what steps took (step_time.py). Steps of other lengths come now and then, so that both stay known. The scheduler
takes the number from a table by batch size; where it is in another process, the number is the configured one.
"""

from __future__ import annotations

from typing import Any

from . import engine
from .faults import Faults
from .step_time import StepTime

# Of the tokens a second that other lengths must gain, as a part.
_GAIN_MIN = 1.02
# Accepted tokens are counted over about as many requests' steps.
_WINDOW = 2000.0
# Steps between two of another length: without drafts, or with all if drafts do not pay. More and more seldom.
_OTHER_STEPS_FIRST = 32
_OTHER_STEPS = 512


class LengthBudget:
    """Of one thread; `step_time` may be read by others."""

    def __init__(self, lengths: tuple[int, ...], faults: Faults) -> None:
        self.lengths = lengths
        tokens_max = lengths[-1]
        self.step_time = StepTime()
        self.tokens_max = tokens_max
        # Draft tokens that the sidecar allows in a step; None: any number.
        self.allowed: int | None = None
        self.length = tokens_max
        self._faults = faults
        # Of requests' steps that verified at least k + 1 tokens, and that accepted as many.
        self._verified = [0.0] * tokens_max
        self._accepted = [0.0] * tokens_max
        self._steps = 0
        self._other_at = _OTHER_STEPS_FIRST
        self._original: Any = None
        self._has_original = False

    def wants_drafts(self) -> bool:
        """Tables are made for every step: the device may need them although this one has no drafts."""
        return True

    def probability_min(self, _requests: int) -> float:
        """Of a node of a table."""
        return 0.01

    def observe(self, requests: int, drafted: int, us: float) -> None:
        """A step without prefill took `us`."""
        self.step_time.observe(requests, drafted, us)

    def accept(self, verified: int, accepted: int, times: int = 1) -> None:
        """Of the `verified` tokens of a request in one step, the first `accepted` were right; `times` over."""
        for k in range(min(verified, self.tokens_max)):
            self._verified[k] += times
            self._accepted[k] += times * (k < accepted)

    def learn(self) -> None:
        """Every few steps."""
        self.step_time.learn()
        if self._verified[0] > _WINDOW:
            self._verified = [0.5 * count for count in self._verified]
            self._accepted = [0.5 * count for count in self._accepted]

    def survival(self, k: int) -> float:
        """That the draft token k (from 0 on) is accepted; where nothing was seen, as if each were as likely as not."""
        return (self._accepted[k] + 0.5 ** (k + 1)) / (self._verified[k] + 1)

    def choose(self, requests: int, tracked: int) -> int:
        """The length for the steps to come; `tracked` of the requests have tables."""
        self._steps += 1
        best = self._best(requests, tracked)
        if self._steps >= self._other_at:
            self._other_at = self._steps + min(_OTHER_STEPS, self._steps)
            best = self.lengths[0] if best > self.lengths[0] else self.tokens_max
        if self.allowed is not None:
            most = min(best, self.allowed // max(1, requests))
            best = max((length for length in self.lengths if length <= most), default=self.lengths[0])
        self.length = best
        return best

    def _best(self, requests: int, tracked: int) -> int:
        if tracked == 0:
            return self.lengths[0]
        if not self.step_time.is_known:
            return self.tokens_max
        time = self.step_time
        plain = time.plain(requests)
        tokens, best, speed = float(requests), self.lengths[0], _GAIN_MIN * requests / plain
        for length in range(1, self.tokens_max + 1):
            tokens += tracked * self.survival(length - 1)
            us = plain + time.drafts + time.row * requests * length
            if length in self.lengths and tokens > speed * us:
                best, speed = length, tokens / us
        return best

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
            if self.length != self.tokens_max:
                wanted = [self.length] * (scheduler.scheduler_config.max_num_seqs + 1)
            if scheduler.dynamic_sd_lookup != wanted:
                scheduler.dynamic_sd_lookup = wanted
        except Exception as error:  # noqa: BLE001 - the configured number stays
            self._faults.add("length", error)
