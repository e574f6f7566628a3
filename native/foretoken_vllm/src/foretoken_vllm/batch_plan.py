"""The cached plan of a batch that is the same as in the step before: all that the next step needs.

Most steps of an engine run the same requests as the step before, and each of them continues where it stopped. Then no
request is looked up and nothing is written into it: the plan holds what a step reports of each request, and requests
are brought up to date when the batch changes. A model's forward pass evicts the proposer from the caches, so the cost
of a step is that of the objects that it touches.
"""

from __future__ import annotations

from array import array
from operator import add, sub
from typing import Any

from . import abi
from .mailbox import Who
from .replica import WEIGHT_ONE, Group, Replica
from .requests import Request

_ROOM_AT = 2


class BatchPlan:
    """Owned by the step thread. Valid while `ids` and `losses` stay; the samples of its requests lag until `settle`."""

    __slots__ = (
        "_bits",
        "_is_tight",
        "_limits",
        "_queries",
        "_requests",
        "_slack",
        "count",
        "heads",
        "ids",
        "is_behind",
        "lengths",
        "levels",
        "line",
        "losses",
        "owners",
        "tokens_max",
        "totals",
        "who",
    )

    def __init__(self, ids: list[str], requests: list[Request], totals: list[int], losses: int) -> None:
        # Of all of the batch, or none of them is of a group. vLLM changes its list in place.
        self.ids = ids.copy()
        self.count = len(ids)
        self.totals = totals
        self.heads = [(request.group.handle, request.sample.index) for request in requests]
        self.owners = [request.group for request in requests]
        self.who: tuple[Who, ...] = tuple(
            (request.group.name, request.sample.index, request.base) for request in requests
        )
        self.levels = [request.level for request in requests]
        self.is_behind = False
        self.lengths: Any = None
        self.line: Any = None
        self._requests = requests
        self._limits = [request.limit for request in requests]
        self.losses = losses
        # No request has less room than this.
        self._slack = 0
        self._is_tight = True
        self._bits = 0
        self.tokens_max = -1
        self._queries = array("i")

    def without_ended(self, req_ids: list[str], losses: int) -> BatchPlan | None:
        """Of a batch from which requests have gone, whatever request the others have now; None: it has others too."""
        if not self.heads or self.losses != losses or len(req_ids) > self.count:
            return None
        places = {name: i for i, name in enumerate(self.ids)}
        if not places.keys() >= set(req_ids):
            return None
        self.settle()
        kept = [places[name] for name in req_ids]
        requests, totals = [self._requests[i] for i in kept], [self.totals[i] for i in kept]
        reduced = BatchPlan(req_ids, requests, totals, losses)
        reduced.prepare(self.tokens_max, self._bits)
        return reduced

    def hold(self, lengths: Any) -> None:
        """The array in which the engine counts the tokens of each request, as long as it is this one."""
        self.lengths = lengths
        self.line = memoryview(lengths)[: self.count]

    def follows(self, counts: list[int], totals: list[int]) -> bool:
        """Whether every request has continued where it stopped, by at least a token, and has room for another."""
        if 0 in counts or list(map(add, self.totals, counts)) != totals:
            return False
        self._slack -= max(counts)
        if self._slack < abi.DRAFT_TOKENS_MAX:
            self._slack = min(map(sub, self._limits, totals))
        return self._slack > 0

    def prepare(self, tokens_max: int, bits: int) -> None:
        """The next steps draft at most this many tokens per request, of at least probability `bits` (of a float)."""
        if bits == self._bits and tokens_max == self.tokens_max:
            return
        self._bits, self.tokens_max = bits, tokens_max
        words: list[int] = []
        if tokens_max > 0:
            for handle, index in self.heads:
                words += (handle, index, tokens_max, 0, bits, WEIGHT_ONE)
        self._queries = array("i", words)
        self._is_tight = False

    def queries(self) -> array[int]:
        """The step's draft records; after `totals` were set. The same array each time."""
        tokens_max = self.tokens_max
        is_tight = self._slack < tokens_max
        if is_tight or self._is_tight:
            rooms = [min(limit - total, tokens_max) for limit, total in zip(self._limits, self.totals, strict=True)]
            self._queries[_ROOM_AT :: abi.DRAFT_WORDS] = array("i", rooms)
            self._is_tight = is_tight
        return self._queries

    def settle(self) -> None:
        """The requests' samples have what the steps since have made."""
        if not self.is_behind:
            return
        self.is_behind = False
        for request, total in zip(self._requests, self.totals, strict=True):
            request.sample.have = request.sample.sent = request.base + total


def plan_of(
    ids: list[str], requests: dict[str, Request], untracked: Request, lengths: Any, replica: Replica
) -> BatchPlan | None:
    """Of the batch whose step has just ended; None: some request of it is not as its tokens are."""
    if replica.is_making:
        return None
    totals = lengths[: len(ids)].tolist()
    tracked: list[Request] = []
    samples: set[int] = set()
    for i, name in enumerate(ids):
        request = requests.get(name)
        if request is untracked:
            continue
        if request is None or not _is_in_step(request, totals[i]):
            return None
        tracked.append(request)
        samples.add(id(request.sample))
    # Two requests that make the same response are nothing for a short path, nor are batches of both kinds.
    if len(samples) < len(ids) and tracked:
        return None
    return BatchPlan(ids, tracked, totals, replica.losses)


def _is_in_step(request: Request, total: int) -> bool:
    group: Group = request.group
    sample = request.sample
    return group.is_alive and group.handle > 0 and sample.have == sample.sent == request.base + total
