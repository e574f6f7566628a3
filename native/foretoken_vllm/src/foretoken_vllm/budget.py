"""How many of a step's draft tokens the engine verifies: as many as make the most tokens in the time that they take.

The one place that decides what drafting may cost. It knows what steps take (step_time.py) and how likely each draft
token is accepted; the rule is that of src/core/draft/draft-length.ts. What drafting itself takes counts as a part of
the step with drafts. While nothing pays, drafts are not even made, but for one step now and then.
"""

from __future__ import annotations

from math import exp

from .step_time import StepTime

PROBABILITY_FLOOR = 0.06
PROBABILITY_CEILING = 0.5
# Until steps of both kinds were seen: loses little on GPUs, and where rows are dear the first steps do not cost much.
PROBABILITY_START = 0.3
# No token is as likely.
NONE = 2.0
# Tokens a second that drafts must gain, as a part: what is less is lost in the noise of what steps take.
_GAIN_MIN = 1.02
# The same in a batch that only shrinks. It ends with its slowest request, which does not gain what others do.
_GAIN_MIN_ENDING = 1.2
# Tokens of lead over the slowest request at which a token counts 1/e of one of the slowest.
_LEAD_TOKENS = 6.0
# Steps in a row whose drafts did not pay before drafting rests; then it rests twice as long each time.
_REST_AFTER = 4
# Not longer: siblings soon have more to draft from, and a step may take a tenth of a second.
_REST_MAX = 8
# Steps after which one goes without drafts, to measure such steps: the more of about its size were seen, the later.
_PLAIN_STEPS_FIRST = 8
_PLAIN_STEPS = 256
# Steps after which one has drafts that do not seem to pay.
_DRAFT_STEPS = 512


class DraftBudget:
    """Of the step thread; `step_time` may be read by others."""

    def __init__(self) -> None:
        self.step_time = StepTime()
        self._steps = 0
        self._plain_at = 0
        self._plain_steps = _PLAIN_STEPS_FIRST
        self._drafted_at = 0
        # Steps in a row without drafts that pay, and those left of the rest.
        self._unpaid = 0
        self._rest = 0
        self._requests = 0
        self._probability_min = PROBABILITY_START

    def wants_drafts(self) -> bool:
        """Whether drafts are to be made; once a step."""
        self._steps += 1
        if self._rest == 0:
            return True
        self._rest -= 1
        return False

    def observe(self, requests: int, drafted: int, us: float) -> None:
        """A step without prefill took `us`, the making of its drafts included."""
        self.step_time.observe(requests, drafted, us)

    def learn(self) -> None:
        """Every few steps."""
        self.step_time.learn()
        self._requests = 0

    def probability_min(self, requests: int) -> float:
        """What is less likely than this cannot pay for its row, whatever else is drafted."""
        if requests != self._requests:
            self._requests = requests
            seen = self.step_time.plain_seen(requests)
            self._plain_steps = min(_PLAIN_STEPS, _PLAIN_STEPS_FIRST * (1 + seen))
            self._probability_min = self._least(requests)
        return self._probability_min

    def _least(self, requests: int) -> float:
        time = self.step_time
        if not time.is_known:
            return PROBABILITY_START
        # At the speed without drafts; with drafts that pay it is higher, and so is this.
        return min(max(time.row * requests / time.plain(requests), PROBABILITY_FLOOR), PROBABILITY_CEILING)

    def choose(self, requests: int, probabilities: list[float], whole: float | None = None) -> float:
        """Drafted tokens at least this likely are verified; above 1: none is. There are some.

        `whole`: the batch only shrinks, probabilities are multiplied by their requests' weights, which add up to this.
        """
        least = self._least_chosen(requests, probabilities, whole)
        if least <= 1:
            self._unpaid = 0
            if self._steps - self._plain_at >= self._plain_steps:
                least = NONE
        else:
            self._unpaid += 1
            if self._unpaid >= _REST_AFTER:
                self._rest = min(_REST_MAX, 1 << (self._unpaid - _REST_AFTER))
            if self._steps - self._drafted_at >= _DRAFT_STEPS:
                least = 0.0
        if least > 1:
            self._plain_at = self._steps
        else:
            self._drafted_at = self._steps
        return least

    def _least_chosen(self, requests: int, probabilities: list[float], whole: float | None) -> float:
        """Of the tokens that, verified together, make the engine fastest."""
        time = self.step_time
        if not time.is_known:
            return 0.0
        plain, row = time.plain(requests), time.row
        tokens, gain = (requests, _GAIN_MIN) if whole is None else (whole, _GAIN_MIN_ENDING)
        us = plain + time.drafts
        speed, least = gain * tokens / plain, NONE
        for probability in sorted(probabilities, reverse=True):
            tokens += probability
            us += row
            if tokens > speed * us:
                speed, least = tokens / us, probability
            elif probability * us < row * tokens:
                # Those that follow are less likely still.
                break
        return least


def weights_of(leads: list[int]) -> list[float]:
    """Of requests by their lead over the slowest, in tokens: who is ahead needs drafts less."""
    return [exp(-lead / _LEAD_TOKENS) for lead in leads]
