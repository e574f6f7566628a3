"""The kernel's walk, slow and obvious: what walk.py and assembly/tables.ts agree on."""

from __future__ import annotations

from typing import Any

import numpy as np

from foretoken_vllm import abi
from foretoken_vllm.table import CHECK_SHIFT, FACTOR, ODDS, ODDS_SHIFT

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


def follower(words: Any, key: int, own_key: int, tokens: list[int]) -> tuple[int, float] | None:
    """The likeliest that the followers have, and how likely it is."""
    best, found = 0, None
    for source, hash_ in enumerate((own_key, key, ANY)):
        for back in range(1, CONTEXT + 1):
            hash_ = mixed(hash_, ([0] * CONTEXT + tokens)[-back])
            word = int(words[hash_ >> HASH_BITS - abi.FOLLOWERS_BITS])
            kind = (CONTEXT * source + CONTEXT - back) * SURES + (word >> abi.TABLE_TOKEN_BITS & SURES - 1)
            if word != 0 and word >> CHECK_SHIFT == hash_ & 255 and ODDS[kind] > best:
                best, found = ODDS[kind], word & TOKEN_MASK
    return None if found is None else (found, best / 1000)


def walk(row: Any, words: Any, tokens: list[int], count: int) -> list[tuple[int, float]]:
    """The drafts behind a request's tokens and their confidences; shorter than `count` where nothing follows.

    `words`: of the followers.
    """
    known, key, own_key, _, *nodes = map(int, row)
    children = [
        ((word >> abi.TABLE_TOKEN_BITS & PARENT_MASK) - 1, word & TOKEN_MASK, ((word >> ODDS_SHIFT) + 0.5) / 16)
        for word in nodes
        if word >= 0
    ]
    if not 0 < known <= len(tokens) <= known + abi.TABLE_NODES:
        return []
    at: int | None = -1
    for token in tokens[known:]:
        at = next((i for i, child in enumerate(children) if child[:2] == (at, token)), None)
        if at is None:
            break
    drafts: list[tuple[int, float]] = []
    while len(drafts) < count:
        at = None if at is None else next((i for i, child in enumerate(children) if child[0] == at), None)
        found = (
            follower(words, key, own_key, tokens + [token for token, _ in drafts]) if at is None else children[at][1:]
        )
        if found is None:
            break
        drafts.append(found)
    return drafts


def drafted(row: Any, words: Any, tokens: list[int], count: int) -> list[int]:
    """The drafts alone."""
    return [token for token, _ in walk(row, words, tokens, count)]
