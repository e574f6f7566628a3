"""What a step takes on this engine: one model, learnt from the steps themselves.

    time = pace * (step + request * requests + row * draft tokens + drafts, where there are any)

Other load on the machine lengthens steps: single ones, phases of seconds in which every step takes longer, drift. So a
step is first divided by the pace around it: the median, over it and its neighbours, of what steps took over what they
should have taken. Otherwise a few steps without drafts, made in a calm phase, would be compared with many with drafts,
made in a busy one. The coefficients are fitted to the last steps of each kind by least absolute relative deviation: a
step that took much longer than it should counts no more than any other (iteratively reweighted least squares).
"""

from __future__ import annotations

from collections import deque
from statistics import median

import numpy as np

# Steps of each kind that the fit is made of, and those without which there is none.
_PLAIN_KEPT = 96
_DRAFTED_KEPT = 288
_PLAIN_KNOWN = 4
_DRAFTED_KNOWN = 12
# Steps before and after one whose pace is that of one; more than outliers come in a row, fewer than phases last.
_PACE_STEPS = 4
_ITERATIONS = 3
# It is fitted again when one step in this many is new: a fit takes as long as some steps' drafts.
_REFIT = 8
# Deviations below this are noise, which counts as if squared.
_DEVIATION = 0.02
# Part of the steps that weighs as much as the guess that a draft token's row takes as long as a request's, and that
# drafts take no longer than their rows: it decides where steps hardly tell these apart.
_PRIOR = 0.02


class StepTime:
    """Belongs to the step thread; figures may be read by others."""

    def __init__(self) -> None:
        # Requests, draft tokens, microseconds over the pace.
        self._plain: deque[tuple[int, int, float]] = deque(maxlen=_PLAIN_KEPT)
        self._drafted: deque[tuple[int, int, float]] = deque(maxlen=_DRAFTED_KEPT)
        # The same in microseconds, since the last `learn`.
        self._fresh: list[tuple[int, int, float]] = []
        self._since_fit = 0
        self.is_known = False
        self._pace = 1.0
        self._step = self._request = 0.0
        self.row = self.drafts = 0.0
        """Of a draft token, and of a step that has any, beyond those: over the pace."""
        self.error = 0.0
        """How far steps were of late from what was expected, as a part of that: a mean of medians."""

    def observe(self, requests: int, drafted: int, us: float) -> None:
        """A step without prefill. Counts after `learn`."""
        self._fresh.append((requests, drafted, us))

    def plain(self, requests: int) -> float:
        """Of a step without drafts, over the pace. Needs `is_known`."""
        return self._step + self._request * requests

    def us(self, requests: int, drafted: int) -> float:
        """What such a step takes now. Needs `is_known`."""
        return self._pace * self._expected(requests, drafted)

    def plain_seen(self, requests: int) -> int:
        """Steps without drafts, of between half and twice as many requests, that the fit is made of."""
        return sum(requests <= 2 * seen <= 4 * requests for seen, _, _ in self._plain)

    def learn(self) -> None:
        """Takes what was observed since the last time; every few steps."""
        fresh, self._fresh = self._fresh, []
        if not fresh:
            return
        if self.is_known:
            fresh = self._over_pace(fresh)
        for step in fresh:
            (self._drafted if step[1] > 0 else self._plain).append(step)
        self._since_fit += len(fresh)
        is_due = _REFIT * self._since_fit >= len(self._plain) + len(self._drafted)
        if is_due and len(self._plain) >= _PLAIN_KNOWN and len(self._drafted) >= _DRAFTED_KNOWN:
            self._since_fit = 0
            self._fit()

    def _expected(self, requests: int, drafted: int) -> float:
        time = self._step + self._request * requests
        return time + self.row * drafted + self.drafts if drafted > 0 else time

    def _over_pace(self, fresh: list[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
        ratios = [us / self._expected(requests, drafted) for requests, drafted, us in fresh]
        paces = [median(ratios[max(0, i - _PACE_STEPS) : i + _PACE_STEPS + 1]) for i in range(len(ratios))]
        error = median(abs(ratio / self._pace - 1) for ratio in ratios)
        self.error += 0.1 * (error - self.error)
        self._pace = paces[-1]
        return [(requests, drafted, us / pace) for (requests, drafted, us), pace in zip(fresh, paces, strict=True)]

    def _fit(self) -> None:
        steps = np.array([*self._plain, *self._drafted])
        requests, drafted, us = steps.T
        has_drafts = drafted > 0
        columns = np.stack([np.ones(len(us)), requests, drafted, has_drafts], axis=1)
        typical = float(np.median(us))
        # Relative deviations, and the guesses as rows of the same kind.
        scaled = columns / us[:, None]
        rows = float(np.median(requests + drafted))
        prior = np.array([[0, rows, -rows, 0], [0, 0, 0, 1]]) / typical
        # Both kinds weigh the same: what matters is how they differ.
        shares = np.where(has_drafts, 1 / len(self._drafted), 1 / len(self._plain)) * (len(us) / 2)
        weights = self._weights(scaled) if self.is_known else np.ones(len(us))
        for _ in range(_ITERATIONS):
            shared = weights * shares
            weighted = scaled * shared[:, None]
            square = weighted.T @ scaled + _PRIOR * float(shared.sum()) * (prior.T @ prior)
            self._take(np.linalg.solve(square + np.eye(4) * 1e-9 * np.trace(square), weighted.sum(axis=0)), scaled)
            weights = self._weights(scaled)
        # Of a step with such rows as these, more than nothing.
        self.is_known = self.plain(1) > 0

    def _take(self, found: np.ndarray, scaled: np.ndarray) -> None:
        """None of them is below zero: what the others then take is what is left, in the mean."""
        step, request, row, drafts = (max(0.0, float(value)) for value in found)
        whole = float(np.median(scaled @ (step, request, row, drafts)))
        self._step, self._request = step / whole, request / whole
        self.row, self.drafts = row / whole, drafts / whole

    def _weights(self, scaled: np.ndarray) -> np.ndarray:
        deviations = np.abs(1 - scaled @ (self._step, self._request, self.row, self.drafts))
        return 1 / np.maximum(deviations, _DEVIATION)
