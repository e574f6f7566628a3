"""A batch that is as it was in the step before: all that its next step needs, made once.

Most steps of an engine run the same requests as the step before, and each of them goes on where it stopped. Then no row
has to be looked up, and nothing is written into it: what a step says of each request is kept here ready to be written,
and the rows themselves are brought up to date when the batch changes. A model's forward pass leaves nothing of the
proposer in the caches, so what counts is how many objects a step touches.
"""

from __future__ import annotations

from array import array
from operator import add, sub
from typing import Any

from . import abi
from .mailbox import Who
from .replica import WEIGHT_ONE, Group, Replica
from .rows import Row

_ROOM_AT = 2


class Lineup:
    """Owned by the step thread. Valid while `ids` and `losses` stay; the samples of its rows lag until `settle`."""

    __slots__ = (
        "_asks",
        "_bits",
        "_is_tight",
        "_limits",
        "_rows",
        "_slack",
        "count",
        "heads",
        "ids",
        "is_behind",
        "lengths",
        "line",
        "losses",
        "owners",
        "tokens_max",
        "totals",
        "who",
    )

    def __init__(self, ids: list[str], rows: list[Row], totals: list[int], losses: int) -> None:
        # Of all of the batch, or none of them is of a group. vLLM changes its list in place.
        self.ids = ids.copy()
        self.count = len(ids)
        self.totals = totals
        self.heads = [(row.group.handle, row.sample.index) for row in rows]
        self.owners = [row.group for row in rows]
        self.who: tuple[Who, ...] = tuple((row.group.name, row.sample.index, row.base) for row in rows)
        self.is_behind = False
        self.lengths: Any = None
        self.line: Any = None
        self._rows = rows
        self._limits = [row.limit for row in rows]
        self.losses = losses
        # No row has less room than this.
        self._slack = 0
        self._is_tight = True
        self._bits = 0
        self.tokens_max = -1
        self._asks = array("i")

    def without_ended(self, req_ids: list[str], losses: int) -> Lineup | None:
        """Of a batch from which requests have gone, whatever row the others have now; None: it has others too."""
        if not self.heads or self.losses != losses or len(req_ids) > self.count:
            return None
        places = {name: i for i, name in enumerate(self.ids)}
        if not places.keys() >= set(req_ids):
            return None
        self.settle()
        kept = [places[name] for name in req_ids]
        rows, totals = [self._rows[i] for i in kept], [self.totals[i] for i in kept]
        reduced = Lineup(req_ids, rows, totals, losses)
        reduced.prepare(self.tokens_max, self._bits)
        return reduced

    def hold(self, lengths: Any) -> None:
        """The array in which the engine counts the tokens of each row, as long as it is this one."""
        self.lengths = lengths
        self.line = memoryview(lengths)[: self.count]

    def follows(self, counts: list[int], totals: list[int]) -> bool:
        """Whether every row has gone on where it stopped, by at least a token, and has room for another."""
        if 0 in counts or list(map(add, self.totals, counts)) != totals:
            return False
        self._slack -= max(counts)
        if self._slack < abi.DRAFT_TOKENS_MAX:
            self._slack = min(map(sub, self._limits, totals))
        return self._slack > 0

    def prepare(self, tokens_max: int, bits: int) -> None:
        """The next steps ask for at most so many tokens a request, each as likely as `bits` (of a float) says."""
        if bits == self._bits and tokens_max == self.tokens_max:
            return
        self._bits, self.tokens_max = bits, tokens_max
        words: list[int] = []
        if tokens_max > 0:
            for handle, index in self.heads:
                words += (handle, index, tokens_max, 0, bits, WEIGHT_ONE)
        self._asks = array("i", words)
        self._is_tight = False

    def asks(self) -> array[int]:
        """The step's draft records; after `totals` were set. The same array each time."""
        tokens_max = self.tokens_max
        is_tight = self._slack < tokens_max
        if is_tight or self._is_tight:
            rooms = [min(limit - total, tokens_max) for limit, total in zip(self._limits, self.totals, strict=True)]
            self._asks[_ROOM_AT :: abi.DRAFT_WORDS] = array("i", rooms)
            self._is_tight = is_tight
        return self._asks

    def settle(self) -> None:
        """The rows' samples have what the steps since have made."""
        if not self.is_behind:
            return
        self.is_behind = False
        for row, total in zip(self._rows, self.totals, strict=True):
            row.sample.have = row.sample.sent = row.base + total


def lineup_of(ids: list[str], rows: dict[str, Row], nobody: Row, lengths: Any, replica: Replica) -> Lineup | None:
    """Of the batch whose step has just ended; None: some row of it is not as its tokens are."""
    if replica.is_making:
        return None
    totals = lengths[: len(ids)].tolist()
    tracked: list[Row] = []
    samples: set[int] = set()
    for i, name in enumerate(ids):
        row = rows.get(name)
        if row is nobody:
            continue
        if row is None or not _is_in_step(row, totals[i]):
            return None
        tracked.append(row)
        samples.add(id(row.sample))
    # Two requests that make the same response are nothing for a short path, nor are batches of both kinds.
    if len(samples) < len(ids) and tracked:
        return None
    return Lineup(ids, tracked, totals, replica.losses)


def _is_in_step(row: Row, total: int) -> bool:
    group: Group = row.group
    sample = row.sample
    return group.is_alive and group.handle > 0 and sample.have == sample.sent == row.base + total
