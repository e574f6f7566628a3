"""The host's half of the second runner's drafts: trees for all requests, a step late, written into tables.

Shares requests, core, link, history, epochs and faults with the first runner's proposer, whose step it runs on the
tokens that have come. Belongs to the thread of the outputs, but for `news` and `in_flight`, which the runner's thread
appends to.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from . import abi
from .core import BUDGET_NONE, StepDrafts
from .faults import Faults
from .followers import TOKEN_BITS, Followers, key_of
from .length import LengthBudget
from .mirror import Mirror, MirroredRequest, TokenRows
from .proposer import ForetokenProposer
from .replica import Replica
from .table import NODES, Tables, rows_of

# Steps that are under way at a time: more were lost count of.
_IN_FLIGHT_MAX = 16


class TableDrafter(ForetokenProposer):
    """One a runner. `take` once for each step's output."""

    _flags = abi.DRAFT_FLAG_TREE
    _drafts_ahead = True
    _has_lineups = False

    def __init__(self, config: Any, tables: Tables, followers: Followers) -> None:
        self.tables = tables
        self._followers = followers
        self.mirror = Mirror(int(config.model_config.max_model_len))
        # What the runner's thread has to tell: called in order, before the next step's tokens are taken.
        self.news: deque[Callable[[], None]] = deque()
        # Of the steps under way: requests, draft tokens verified, whether there is no prefill in it.
        self.in_flight: deque[tuple[int, int, bool]] = deque(maxlen=_IN_FLIGHT_MAX)
        self._batch: list[MirroredRequest] = []
        self._is_decode = False
        self._length = LengthBudget(0, Faults())
        super().__init__(config)
        if self._is_on:
            self.bind_runner(self.mirror)

    def _open(self, config: Any) -> None:
        super()._open(config)
        length_max, self._tokens_max = self._tokens_max, NODES
        self._length = LengthBudget(length_max, self.faults)
        self._budget = self._length  # type: ignore[assignment]
        if self._replica is not None:
            self._replica.followers = self._followers
        if int(config.model_config.get_vocab_size()) > 1 << TOKEN_BITS:
            raise ValueError(f"a vocabulary of more than {1 << TOKEN_BITS} tokens")

    def _judges_rightly(self) -> bool:
        """The fault of the first runner's sampler on a CPU is not in this one."""
        return True

    @property
    def is_exact(self) -> bool:
        return self._settings.exact > 0

    def advance(self) -> None:
        """Other weights, unless the requests say which."""
        if self._run is None:
            self._advance(self._epoch + 1)

    def take(self, ids: list[str], sampled: list[list[int]]) -> None:
        """The tokens of a step; writes the tables for the steps to come. Never raises."""
        try:
            while self.news:
                self.news.popleft()()
            self._took_part(ids, sampled)
            kept, self._batch = self.mirror.step(ids, sampled)
            totals = np.array([request.total for request in self._batch], dtype=np.int32)
            self.propose(kept, totals, TokenRows(self._batch))
            # A least probability is given where step times are not to decide.
            if self._settings.probability_min == 0:
                self._length.choose(len(ids), sum(map(self._is_tracked, ids)))
                self._length.apply()
        except Exception as error:  # noqa: BLE001 - the step has its output
            self.faults.add("take", error)

    def _took_part(self, ids: list[str], sampled: list[list[int]]) -> None:
        requests, verified, is_decode = self.in_flight.popleft() if self.in_flight else (0, 0, False)
        self._is_decode = is_decode and requests == len(ids)
        self._verified = verified
        self.counters.drafted += verified
        if not self._is_decode or verified == 0:
            return
        each = verified // requests
        for request_id, tokens in zip(ids, sampled, strict=True):
            if self._is_tracked(request_id):
                self._length.accept(each, len(tokens) - 1)

    def _is_tracked(self, request_id: str) -> bool:
        return self._requests.get(request_id, self._untracked) is not self._untracked

    def _end_step(self, began: float, drafts: list[list[int]]) -> None:
        ended = time.perf_counter()
        verified = self._verified if self._is_decode and self._returned_at > 0 else -1
        self._ledger.append((len(drafts), began - self._returned_at, verified, 0.0, ended - began, 0))
        self._returned_at = began
        if len(self._ledger) >= 16:
            self._settle_ledger()

    def _allowed(self) -> int:
        """What the sidecar allows limits what is verified, and so the length; no table is smaller for it."""
        allowed = super()._allowed()
        self._length.allowed = None if allowed == BUDGET_NONE else allowed
        return BUDGET_NONE if self._may_draft else 0

    def _use(
        self,
        replica: Replica,
        drafts: list[list[int]],
        asked: list[int],
        found: StepDrafts,
        asked_progress: list[int],
        progress: list[int],
    ) -> None:
        parents, _ = replica.details(len(found.tokens))
        requests = [self._batch[i] for i in asked]
        slots, known = [request.slot for request in requests], [request.total for request in requests]
        ids = self.mirror.input_batch.req_ids
        kept = [self._requests[ids[i]] for i in asked]
        keys = [(one.group.handle, key_of(one.group.handle, one.sample.index)) for one in kept]
        self.tables.publish(slots, known, keys, rows_of(found.starts, found.tokens, parents))
