"""Tables of continuations: what the second model runner's drafts are made of, a tree for each request.

The host is a step behind the device: when it drafts, the device has sampled tokens that it has not seen. So it drafts a
tree from the last token that it knows, and the device walks the tree with what it has sampled since (walk.py).

    words of a row:  known  nodes...
    known            tokens of the request up to the tree's root; 0: there is no tree
    node             token + (parent + 1) << TOKEN_BITS; parent -1: the root; -1: no node. Parents come before children,
                     the likelier of two children of one parent comes first.

The device reads host memory while the host may write the next tables. So there are two buffers, and `selected` says
which one is whole. A row that was torn all the same would give drafts that the model refuses, and nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import abi

NODES = abi.TREE_TOKENS_MAX
TOKEN_BITS = 24
ROW_WORDS = 1 + NODES
NO_NODE = -1
Words = NDArray[np.int32]


class Tables:
    """Two buffers of a row for each of the runner's slots, over memory that the device can read."""

    def __init__(self, buffers: Words, selected: Words) -> None:
        """`buffers`: [2, slots, ROW_WORDS], `selected`: [1]; both zero."""
        self._buffers = buffers
        self._selected = selected

    def clear(self, slot: int) -> None:
        """The slot belongs to another request."""
        self._buffers[:, slot, 0] = 0

    def publish(self, slots: list[int], known: list[int], rows: Words) -> None:
        """The tables of one step; each replaces its slot's."""
        to = 1 - int(self._selected[0])
        buffer = self._buffers[to]
        # Of requests that are not in this step, as they were.
        buffer[:] = self._buffers[1 - to]
        buffer[slots, 1:] = rows
        buffer[slots, 0] = known
        self._selected[0] = to


def rows_of(starts: list[int], tokens: list[int], parents: list[int]) -> Words:
    """The nodes of each draft, of [starts[i], starts[i + 1])."""
    count = len(starts) - 1
    rows = np.full((count, NODES), NO_NODE, dtype=np.int32)
    if tokens:
        begins = np.array(starts[:-1])
        lengths = np.diff(np.array(starts))
        owners = np.repeat(np.arange(count), lengths)
        places = np.arange(len(tokens)) - np.repeat(begins, lengths)
        words = np.array(tokens, dtype=np.int32) + ((np.array(parents, dtype=np.int32) + 1) << TOKEN_BITS)
        rows[owners, places] = words
    return rows


def walk(row: Any, tokens: list[int], count: int) -> list[int]:
    """The drafts behind a request's tokens, as the kernel makes them; shorter than `count` where it leaves the tree."""
    known, nodes = int(row[0]), [int(word) for word in row[1:]]
    children = [((word >> TOKEN_BITS) - 1, word & ((1 << TOKEN_BITS) - 1)) for word in nodes if word != NO_NODE]
    if not 0 < known <= len(tokens) <= known + NODES:
        return []
    at: int | None = -1
    for token in tokens[known:]:
        at = next((i for i, child in enumerate(children) if child == (at, token)), None)
        if at is None:
            break
    if at is None and len(tokens) > 1:
        at = _elsewhere(children, tokens[-2], tokens[-1])
    if at is None:
        return []
    drafts: list[int] = []
    while len(drafts) < count:
        at = next((i for i, (parent, _) in enumerate(children) if parent == at), None)
        if at is None:
            break
        drafts.append(children[at][1])
    return drafts


def _elsewhere(children: list[tuple[int, int]], before: int, last: int) -> int | None:
    """A node that follows the same two tokens, else the likeliest of the same token."""
    places = [i for i, (_, token) in enumerate(children) if token == last]
    both = [i for i in places if children[i][0] >= 0 and children[children[i][0]][1] == before]
    return next(iter(both or places), None)
