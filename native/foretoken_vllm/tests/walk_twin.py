"""The kernel's walk, slow and obvious: what walk.py and assembly/tables.ts agree on."""

from __future__ import annotations

from typing import Any

import numpy as np

from foretoken_vllm import abi
from foretoken_vllm.table import CHECK_SHIFT, FACTOR, MATCH_BOUNDS, ODDS, ODDS_SHIFT, TREE_KINDS

TOKEN_MASK = (1 << abi.TABLE_TOKEN_BITS) - 1
PARENT_MASK = (1 << abi.TABLE_PARENT_BITS) - 1
HASH_BITS = 31
CONTEXT = 3
SURES = 4
ANY = 0


def mixed(hash_: int, token: int) -> int:
    """Of numbers below 2^31."""
    product = (hash_ ^ token) * FACTOR & (1 << HASH_BITS) - 1
    return product ^ product >> 15


def key_of(handle: int, index: int) -> int:
    """Of one sequence of a group."""
    return mixed(handle, index + 1)


def row_of(known: int, key: int, own_key: int, tokens: list[int], parents: list[int]) -> Any:
    """A row of a table; the odds of its nodes are all the same."""
    row = np.full(abi.TABLE_ROW_WORDS, -1, np.int32)
    row[: abi.TABLE_HEAD_WORDS] = known, key, own_key, 0
    for i, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        row[abi.TABLE_HEAD_WORDS + i] = token | (parent + 1) << abi.TABLE_TOKEN_BITS | 12 << ODDS_SHIFT
    return row


def follower(words: Any, key: int, own_key: int, tokens: list[int]) -> tuple[int, float, int] | None:
    """The likeliest that the followers have, how likely it is, and of which kind."""
    best, found = 0, None
    for source, hash_ in enumerate((own_key, key, ANY)):
        for back in range(1, CONTEXT + 1):
            hash_ = mixed(hash_, ([0] * CONTEXT + tokens)[-back])
            word = int(words[hash_ >> HASH_BITS - abi.FOLLOWERS_BITS])
            kind = (CONTEXT * source + CONTEXT - back) * SURES + (word >> abi.TABLE_TOKEN_BITS & SURES - 1)
            if word != 0 and word >> CHECK_SHIFT == hash_ & 255 and ODDS[kind] > best:
                best, found = ODDS[kind], (word & TOKEN_MASK, ODDS[kind] / 1000, TREE_KINDS + kind)
    return found


class Walk:
    """Through one row's tree, from its root along a request's tokens."""

    def __init__(self, row: Any, words: Any, tokens: list[int]) -> None:
        """`words`: of the followers."""
        known, self._key, self._own_key, matched, *nodes = map(int, row)
        self._words, self._tokens = words, list(tokens)
        self._nodes = [
            ((word >> abi.TABLE_TOKEN_BITS & PARENT_MASK) - 1, word & TOKEN_MASK, word >> ODDS_SHIFT)
            for word in nodes
            if word >= 0
        ]
        self.is_on = 0 < known <= len(tokens) <= known + abi.TABLE_NODES
        self._matched = matched - known
        self._at: int | None = -1
        for token in tokens[known:]:
            self._at = self._behind(token)

    def _behind(self, token: int) -> int | None:
        return next((i for i, node in enumerate(self._nodes) if node[:2] == (self._at, token)), None)

    def next(self) -> tuple[int, float, int] | None:
        """The likeliest token, how likely it is, and of which kind."""
        if not self.is_on:
            return None
        node = None if self._at is None else next((node for node in self._nodes if node[0] == self._at), None)
        if node is None:
            return follower(self._words, self._key, self._own_key, self._tokens)
        length = sum(self._matched + len(self._tokens) >= bound for bound in MATCH_BOUNDS)
        return node[1], (node[2] + 0.5) / 16, node[2] // 2 * 3 + length

    def go(self, token: int) -> None:
        self._at = None if self._at is None else self._behind(token)
        self._tokens.append(token)


def walk(row: Any, words: Any, tokens: list[int], count: int) -> list[tuple[int, float]]:
    """The drafts behind a request's tokens and their confidences; shorter than `count` where nothing follows."""
    at = Walk(row, words, tokens)
    drafts: list[tuple[int, float]] = []
    while len(drafts) < count and (found := at.next()) is not None:
        drafts.append(found[:2])
        at.go(found[0])
    return drafts


Noted = tuple[list[int], list[int]]


def walk_along(
    row: Any, words: Any, tokens: list[int], count: int, head: list[tuple[int, float]], rather: Any
) -> tuple[list[tuple[int, float]], Noted, int]:
    """The same along a head's drafts; what is noted of the head's tokens and the table's; and how many are kept."""
    at = Walk(row, words, tokens)
    drafts: list[tuple[int, float]] = []
    notes: Noted = ([], [])
    kept, is_open = 0, at.is_on or len(head) > 0
    for place in range(count):
        own = head[place] if place < len(head) and kept == place else None
        said = at.next() if is_open else None
        notes[0].append(-1 if own is None else own[0])
        notes[1].append(-1 if said is None else said[0] | said[2] << abi.TABLE_TOKEN_BITS)
        is_open = own is not None or said is not None
        if said is not None and (own is None or own[0] == said[0] or rather[place][said[2]]):
            both = own is not None and own[0] == said[0]
            drafts.append((said[0], max(said[1], own[1]) if both and own is not None else said[1]))
        elif own is not None:
            drafts.append(own)
        else:
            break
        kept += own is not None and drafts[-1][0] == own[0]
        at.go(drafts[-1][0])
    for note in notes:
        note.extend([-1] * (count - len(note)))
    return drafts, notes, kept


def drafted(row: Any, words: Any, tokens: list[int], count: int) -> list[int]:
    """The drafts alone."""
    return [token for token, _ in walk(row, words, tokens, count)]
