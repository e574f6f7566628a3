"""The host's half of the second runner's drafts: tables for all requests, a step late, in memory that the device reads.

Shares requests, core, link, history, epochs and faults with the first runner's proposer. A batch that is as it was in
the step before takes one call into the core, outside of Python's lock, and no loop over requests (lineup.py); any other
is read by the proposer's step, which goes request by request. Belongs to the thread of the outputs, but for `news` and
`in_flight`, which the runner's thread appends to.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import abi
from .core import BUDGET_NONE, CoreTrapError
from .evidence import Evidence, Judged
from .faults import Faults
from .graphs import ladder
from .length import LengthBudget
from .lineup import Lineup, lineup_of
from .mailbox import SteppedRows
from .mirror import Mirror
from .proposer import STEP_S_MAX, SWEEP_STEPS, ForetokenProposer
from .replica import Replica
from .table import Tables

# Steps that are under way at a time: more were lost count of.
_IN_FLIGHT_MAX = 16


class TokenRows:
    """The tokens of a step's requests, read as the first runner's `token_ids_cpu`: `rows[i, :n]` and `rows[i]`."""

    def __init__(self, tokens: NDArray[np.int32], slots: NDArray[np.int64]) -> None:
        self._tokens = tokens
        self._slots = slots

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, tuple):
            row, part = at
            return self._tokens[self._slots[row], part]
        return self._tokens[self._slots[at]]


class TableDrafter(ForetokenProposer):
    """One a runner. `take` once for each step's output."""

    _drafts_ahead = True
    _has_lineups = False

    def __init__(self, config: Any) -> None:
        self._slots = int(config.scheduler_config.max_num_seqs)
        self.mirror = Mirror(self._slots, int(config.model_config.max_model_len))
        # What the runner's thread has to tell: called in order, before the next step's tokens are taken.
        self.news: deque[Callable[[], None]] = deque()
        # Steps that were launched; of those under way the number, requests, draft tokens verified, whether none of it
        # is prefill, and how many of the tokens a head was asked for.
        self.launched = 0
        self.in_flight: deque[tuple[int, int, int, bool, int]] = deque(maxlen=_IN_FLIGHT_MAX)
        # What is learnt of a head that drafts too; None: there is none.
        self.evidence: Evidence | None = None
        self.gives_up = False
        """The head drafts alone, as without the plugin."""
        # The batch of the step before.
        self._lineup: Lineup | None = None
        self._is_decode = False
        self._asked = 0
        self._is_adaptive = False
        # The step's tokens are in the mirror.
        self._is_mirrored = False
        self._length = LengthBudget((0,), Faults())
        super().__init__(config)
        if self._is_on:
            self.bind_runner(self.mirror)

    def _open(self, config: Any) -> None:
        if int(config.model_config.get_vocab_size()) > 1 << abi.TABLE_TOKEN_BITS:
            raise ValueError(f"a vocabulary of more than {1 << abi.TABLE_TOKEN_BITS} tokens")
        super()._open(config)
        self._is_adaptive = bool(getattr(config.speculative_config, "enable_adaptive_verification", False))
        self.choose_among(ladder(self._tokens_max))
        # The proposer's step drafts nothing: the tables are drafts.
        self._tokens_max = 0

    def _new_replica(self, vocabulary: int) -> Replica:
        return Replica(self._settings, self.faults, vocabulary, slots=self._slots)

    def choose_among(
        self, lengths: tuple[int, ...], asks: Callable[[int], Iterable[int]] = lambda _length: (0,)
    ) -> None:
        """Numbers of draft tokens of a request in a step, and of a head's among them; before the first step."""
        self._length = LengthBudget(lengths, self.faults, asks)
        self._budget = self._length  # type: ignore[assignment]

    def _judges_rightly(self) -> bool:
        """The fault of the first runner's sampler on a CPU is not in this one."""
        return True

    @property
    def asked(self) -> int:
        """Of a head, in the next step; no more than the step verifies."""
        return self._length.asked

    @property
    def is_exact(self) -> bool:
        return self._settings.exact > 0

    @property
    def tables(self) -> Tables | None:
        """None: there are none, or none any more."""
        return None if self._replica is None or not self._is_on else self._replica.tables

    def advance(self) -> None:
        """Other weights, unless the requests say which."""
        if self._run is None:
            self._advance(self._epoch + 1)

    def take(self, ids: list[str], tokens: NDArray[Any], counts: NDArray[Any]) -> None:
        """The tokens of a step, [requests, width], of which `counts` are there; writes the tables. Never raises."""
        began = time.perf_counter()
        launched, requests, self._verified, is_decode, self._asked = (
            self.in_flight.popleft() if self.in_flight else (self.launched, 0, 0, False, 0)
        )
        self._is_decode = is_decode and requests == len(ids)
        self._is_mirrored = False
        try:
            self._take(ids, tokens, counts, launched)
        except Exception as error:  # noqa: BLE001 - the step has its output
            self._recover_step(error, ids, tokens, counts, launched)
        try:
            self._end_step(began, len(ids))
        except Exception as error:  # noqa: BLE001 - only counters
            self.faults.add("finish", error)

    def _recover_step(self, error: Exception, *step: Any) -> None:
        """What the core has of the step is not known, so that all begins again; only the mirror misses nothing."""
        self._lineup = None
        try:
            if not isinstance(error, CoreTrapError):
                self.faults.add("take", error)
            if not self._is_mirrored:
                self.mirror.take(*step)
            if isinstance(error, CoreTrapError):
                self._trapped(error)
                return
            self._requests.clear()
            if self._replica is not None:
                self._replica.clear()
        except Exception as failure:  # noqa: BLE001 - see take
            self.faults.add("recover", failure)

    def _take(self, ids: list[str], tokens: NDArray[Any], counts: NDArray[Any], launched: int) -> None:
        if self.news:
            self._leave()
            while self.news:
                self.news.popleft()()
        replica = self._replica
        if replica is None or not self._is_on:
            # No step verifies what nobody drafts.
            self.gives_up = True
            self._choose(len(ids), 0)
            return
        lineup = self._steady(replica, ids)
        kept = self.mirror.take(ids, tokens, counts, launched)
        self._is_mirrored = True
        if lineup is not None:
            self._steps += 1
            self.counters.quick += 1
            rows = lineup.rows
            self.counters.accepted += int(np.maximum(kept[rows] - 1, 0).sum())
            if self._link is not None:
                before = self.mirror.totals[lineup.slots] - kept[rows]
                self._mailbox.up.append(SteppedRows(self._epoch, lineup.who, before, tokens[rows], kept[rows]))
            self._draft(replica, lineup, tokens, kept)
        else:
            begun, sampled = self.mirror.step(ids, tokens, kept)
            slots = self.mirror.slots_of(self.mirror.input_batch.req_ids)
            self._step(replica, sampled, self.mirror.totals[slots], TokenRows(self.mirror.tokens, slots))
            lineup = lineup_of([*ids, *begun], self.mirror, self._requests, replica)
            self._draft(replica, lineup, tokens, None)
            # Without those that have begun, it is not the batch of the next step.
            self._lineup = lineup if lineup.is_whole and not begun else None
        noted = None
        if self.evidence is not None:
            # Where vLLM adapts the numbers, all were drafted.
            each = self._verified // len(ids) if self._is_decode and not self._is_adaptive else tokens.shape[1] - 1
            slots = self.mirror.slots_of(ids)
            before = self.mirror.totals[slots] - kept
            noted = self.evidence.judge(launched - 1, slots, before, tokens[:, :each], counts)
        self._learn(ids, counts, lineup, noted)

    def _steady(self, replica: Replica, ids: list[str]) -> Lineup | None:
        """The batch, if it is as in the step before; else all requests are up to date."""
        lineup = self._lineup
        if lineup is not None and lineup.is_current(ids, replica) and (self._steps + 1) % SWEEP_STEPS != 0:
            if not self._mailbox.down:
                return lineup
            lineup.settle(self.mirror.totals)
            replica.begin()
            self._take_down(replica)
            replica.cross()
            if lineup.is_current(ids, replica) and not replica.is_making and lineup.holds(self.mirror.totals):
                return lineup
            self._lineup = None
        self._leave()
        return None

    def _draft(self, replica: Replica, lineup: Lineup, tokens: NDArray[Any], kept: NDArray[np.int64] | None) -> None:
        """One call into the core, which has not got the `kept` tokens of the batch yet; None: it has."""
        # Where no drafts are made now, they may be in the next step.
        drafts = max(1, self._length.length) if self._allowed() > 0 else 0
        records = lineup.fill(kept, self.mirror.totals, drafts)
        if len(records) > 0:
            given = np.zeros((len(records), 0), np.int32) if kept is None else tokens[lineup.rows[lineup.inside]]
            replica.draft_tables(lineup.owners, records, given)

    def _leave(self) -> None:
        """The requests are brought up to date before anybody reads them."""
        super()._leave()
        lineup, self._lineup = self._lineup, None
        if lineup is not None:
            lineup.settle(self.mirror.totals)

    def _learn(self, ids: list[str], counts: NDArray[Any], lineup: Lineup, noted: Judged | None) -> None:
        """What the step verified and accepted; chooses the length of the steps to come. `noted`: beside a head."""
        self.counters.drafted += self._verified
        rows = lineup.rows[lineup.rows < len(ids)] if noted is None else np.arange(len(ids))
        if self._is_decode and self._verified > 0:
            accepted = np.maximum(counts[rows] - 1, 0)
            for found, times in enumerate(np.bincount(accepted).tolist()):
                self._length.accept(self._verified // len(ids), found, times, asked=self._asked)
            if noted is not None:
                self._length.of_table.add(*noted)
        # A head drafts for all.
        self._choose(len(ids), lineup.tracked if noted is None else len(ids))

    def _choose(self, requests: int, tracked: int) -> None:
        # A least probability is given where step times are not to decide; and vLLM's adaptive verification does not
        # verify all that is scheduled, so it is left to choose by what it has measured itself.
        if self._settings.probability_min == 0 and not self._is_adaptive:
            self._length.choose(requests, tracked, gives_up=self.evidence is not None and self.gives_up)
            self._length.apply()

    def _end_step(self, began: float, requests: int) -> None:  # type: ignore[override]
        ended = time.perf_counter()
        span = began - self._returned_at
        if self._is_decode and 0 < span < STEP_S_MAX and self._returned_at > 0:
            self._length.observe(requests, self._verified, span * 1e6, self._asked)
        self._ledger.append((requests, span, -1, 0.0, ended - began, 0))
        self._returned_at = began
        if len(self._ledger) >= 16:
            self._settle_ledger()

    def _allowed(self) -> int:
        """What the sidecar allows limits what is verified, and so the length; no table is smaller for it."""
        allowed = super()._allowed()
        self._length.allowed = None if allowed == BUDGET_NONE else allowed
        return BUDGET_NONE if self._may_draft else 0
