"""The requests of the second runner's step as arrays: what a step needs of a batch that is as in the step before.

It holds what the core and the link get of each request that has a group, so that a step has no loop over requests.
Requests are brought up to date by `settle` before anybody reads them; the first runner's batch_plan.py is alike.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import abi
from .mailbox import Who
from .mirror import Mirror
from .replica import Replica
from .requests import Request

_COUNT, _SLOT, _KNOWN, _PATH = 2, 3, 4, 5
# From as many requests on, each gets a new table in every other step: that costs 1 % of the tokens, and saves a third
# of the host's part of a step. The device walks an older table for longer.
TURNS_FROM = 160
_STAYS = -1


class Lineup:
    """Valid while `ids` and the replica's `losses` stay."""

    def __init__(self, ids: list[str], requests: list[Request | None], slots: NDArray[np.int64], losses: int) -> None:
        """None: a request without a group, or that is not where its tokens are."""
        self.ids = ids
        self.losses = losses
        self.is_whole = True
        """Whether it does for the next step of the same batch."""
        self.tracked = 0
        """Requests that have a group, whether or not they are where their tokens are."""
        self.requests = [request for request in requests if request is not None]
        # Their rows in the batch, and their slots.
        self.rows = np.array([row for row, one in enumerate(requests) if one is not None], np.int64)
        self.slots = slots[self.rows]
        self.who: tuple[Who, ...] = tuple((one.group.name, one.sample.index, one.base) for one in self.requests)
        self._limits = np.array([request.limit for request in self.requests], np.int64)
        # Those that are in the core, among them.
        self.inside = np.array([i for i, one in enumerate(self.requests) if one.group.handle > 0], np.int64)
        self.owners = [self.requests[i].group for i in self.inside.tolist()]
        self.records = np.zeros((len(self.inside), abi.TABLE_STEP_WORDS), np.int32)
        for record, i in zip(self.records, self.inside.tolist(), strict=True):
            record[:2] = self.requests[i].group.handle, self.requests[i].sample.index
        self.records[:, _SLOT] = self.slots[self.inside]
        self._turn = 0

    def fill(self, counts: NDArray[np.int64] | None, totals: NDArray[np.int64], drafts: int) -> NDArray[np.int32]:
        """The core's records of a step in which the batch got `counts` tokens; None: it has them.

        `totals`: by slot, of what each request has now; `drafts`: of a request in a step; 0: it gets no table.
        """
        takes_turns = counts is not None and len(self.records) >= TURNS_FROM
        # Before a table is replaced, one step may accept all of its drafts, or two; those of the next one follow them.
        steps = 3 if takes_turns else 2
        path = min(steps * (drafts + 1), abi.DRAFT_TOKENS_MAX) if drafts > 0 else 0
        known = totals[self.slots[self.inside]]
        self.records[:, _COUNT] = 0 if counts is None else counts[self.rows[self.inside]]
        self.records[:, _KNOWN] = known
        self.records[:, _PATH] = np.clip(self._limits[self.inside] - known, 0, path)
        if takes_turns and drafts > 0:
            self._turn = 1 - self._turn
            self.records[self._turn :: 2, _PATH] = _STAYS
        return self.records

    def settle(self, totals: NDArray[np.int64]) -> None:
        """The requests' samples have what the steps since have made."""
        for request, total in zip(self.requests, totals[self.slots].tolist(), strict=True):
            request.sample.have = request.sample.sent = request.base + total

    def holds(self, totals: NDArray[np.int64]) -> bool:
        """Whether the samples are as `settle` has left them."""
        return all(
            request.sample.have == request.sample.sent == request.base + total
            for request, total in zip(self.requests, totals[self.slots].tolist(), strict=True)
        )

    def is_current(self, ids: list[str], replica: Replica) -> bool:
        """Whether it can be used for a step of this batch."""
        return self.losses == replica.losses and self.ids == ids


def lineup_of(ids: list[str], mirror: Mirror, requests: dict[str, Request], replica: Replica) -> Lineup:
    """Of the batch whose step has just ended."""
    slots = mirror.slots_of(ids)
    found: list[Request | None] = []
    samples: set[int] = set()
    is_whole, tracked = not replica.is_making, 0
    for name, total in zip(ids, mirror.totals[slots].tolist(), strict=True):
        request = requests.get(name) if name in mirror.requests else None
        # Two requests that make the same response are nothing for a short path.
        is_in_step = request is not None and _is_in_step(request, total) and id(request.sample) not in samples
        if request is not None and is_in_step:
            samples.add(id(request.sample))
        found.append(request if is_in_step else None)
        is_tracked = request is not None and request.group.name != ""
        tracked += is_tracked
        is_whole = is_whole and (
            is_in_step or (not is_tracked and (request is not None or name not in mirror.requests))
        )
    lineup = Lineup(ids.copy(), found, slots, replica.losses)
    lineup.is_whole, lineup.tracked = is_whole, tracked
    return lineup


def _is_in_step(request: Request, total: int) -> bool:
    group, sample = request.group, request.sample
    end = request.base + total
    return group.is_alive and sample.sent == end and (group.handle < 0 or (group.handle > 0 and sample.have == end))
