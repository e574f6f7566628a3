"""Tables of continuations: what the second model runner's drafts are made of, a tree for each request.

The host is a step behind the device: when it drafts, the device has sampled tokens that it has not seen. So it drafts a
tree from the last token that it knows, and the device walks the tree with what it has sampled since (walk.py).

    words of a row:  known  key  own key  nodes...
    known            tokens of the request up to the tree's root; 0: there is no tree
    key, own key     of the request's group and of the request in the table of what followed the same tokens
                     (followers.py), for a device that has left the tree
    node             token + (parent + 1) << TOKEN_BITS; parent -1: the root; -1: no node. Parents come before children,
                     the likelier of two children of one parent comes first.

The device reads host memory while the host may write the next tables. So there are two buffers, and `selected` says
which one is whole. A row that was torn all the same would give drafts that the model refuses, and nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .followers import follower

# As many as fit: 256 rows take less than 64 KiB.
NODES = 60
HEAD_WORDS = 3
TOKEN_BITS = 24
ROW_WORDS = HEAD_WORDS + NODES
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

    def publish(self, slots: list[int], known: list[int], keys: list[tuple[int, int]], rows: Words) -> None:
        """The tables of one step, of which there may be none; each replaces its slot's."""
        if not slots:
            return
        to = 1 - int(self._selected[0])
        buffer = self._buffers[to]
        # Of requests that are not in this step, as they were.
        buffer[:] = self._buffers[1 - to]
        buffer[slots, HEAD_WORDS:] = rows
        buffer[slots, 1:HEAD_WORDS] = keys
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


def walk(row: Any, words: Any, tokens: list[int], count: int) -> list[int]:
    """The drafts behind a request's tokens, as the kernel makes them; shorter than `count` where nothing follows.

    `words`: of the followers.
    """
    known, key, own_key, *nodes = map(int, row)
    children = [((word >> TOKEN_BITS) - 1, word & ((1 << TOKEN_BITS) - 1)) for word in nodes if word != NO_NODE]
    if not 0 < known <= len(tokens) <= known + NODES:
        return []
    at: int | None = -1
    for token in tokens[known:]:
        at = next((i for i, child in enumerate(children) if child == (at, token)), None)
        if at is None:
            break
    drafts: list[int] = []
    while len(drafts) < count:
        at = None if at is None else next((i for i, (parent, _) in enumerate(children) if parent == at), None)
        found = follower(words, key, own_key, tokens + drafts) if at is None else children[at][1]
        if found is None:
            break
        drafts.append(found)
    return drafts
