"""The tokens that followed the same one, two or three tokens in a request's own text, in its group's and in any.

They are a hash table of words in memory of the host, which the device reads: outside of a request's tree it drafts from
them. The host writes it as tokens come.

    word:  token | sure << TOKEN_BITS | check << CHECK_SHIFT; 0: nothing
    sure   how often in turn the token came, at most SURE_MAX; other tokens lower it, and then take the place
    check  tells a context from others of the same place

The device may read while the host writes: a word is old or new, and a wrong one drafts a token that the model refuses.
src/tools/replay/followers.ts is the same table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import abi

WORDS_BITS = 23
TOKEN_BITS = 21
SURE_MAX = 3
CHECK_SHIFT = TOKEN_BITS + 2
FACTOR = 0x2C1B3C6D
# The tokens before, at most.
CONTEXT = 3
# How often such a follower was right in replays, in parts of a thousand: of the own text, the group's, any; behind
# three tokens, two, one; by how sure it is. The most likely is drafted.
# fmt: off
ODDS = (
    400, 583, 643, 827, 313, 505, 576, 798, 210, 397, 492, 758,
    324, 472, 546, 794, 245, 410, 511, 768, 157, 337, 463, 707,
    309, 464, 543, 791, 232, 395, 507, 765, 142, 325, 463, 704,
)
# fmt: on
_ANY = 0
_HASH_BITS = 31
_PROMPT = -1
_TOKEN = (1 << TOKEN_BITS) - 1
# Followers of one context in a step; more are not counted.
_ROUNDS = 8


def mixed(hashes: Any, tokens: Any) -> Any:
    """Of whole numbers below 2^31, or arrays of them in 64 bits."""
    product = (hashes ^ tokens) * FACTOR & (1 << _HASH_BITS) - 1
    return product ^ product >> 15


def key_of(handle: Any, index: Any) -> Any:
    """Of one sequence of a group."""
    return mixed(handle, index + 1)


class Followers:
    """The host's half, which belongs to the thread of the replica. A group's key is its handle in the core."""

    def __init__(self, words: NDArray[np.int32]) -> None:
        """`words`: 1 << WORDS_BITS of them, zero."""
        self.words = words
        # The last tokens of each group's prompt and sequences.
        self._tails: dict[int, dict[int, list[int]]] = {}

    def take_prompt(self, handle: int, tokens: list[int]) -> None:
        """A piece of a group's prompt."""
        self._take([(handle, _PROMPT, tokens)])

    def take(self, words: list[int]) -> None:
        """The append records of a step (assembly/abi.ts)."""
        records: list[tuple[int, int, list[int]]] = []
        at, header = 0, abi.APPEND_HEADER_WORDS
        while at < len(words):
            end = at + header + words[at + 2]
            records.append((words[at], words[at + 1], words[at + header : end]))
            at = end
        self._take(records)

    def drop(self, handle: int) -> None:
        """A group is gone; another may get its handle."""
        self._tails.pop(handle, None)

    def _take(self, records: list[tuple[int, int, list[int]]]) -> None:
        text: list[int] = []
        groups: list[int] = []
        sequences: list[int] = []
        places: list[int] = []
        for handle, index, tokens in records:
            tails = self._tails.setdefault(handle, {})
            begin = len(text) + CONTEXT
            text += tails.get(index) or tails.get(_PROMPT) or [0] * CONTEXT
            text += tokens
            tails[index] = text[-CONTEXT:]
            groups += [handle] * len(tokens)
            sequences += [index] * len(tokens)
            places += range(begin, len(text))
        if not places:
            return
        told, at, keys = np.array(text, dtype=np.int64), np.array(places), np.array(groups, dtype=np.int64)
        for hashes in (key_of(keys, np.array(sequences)), keys, np.full_like(keys, _ANY)):
            for back in range(1, CONTEXT + 1):
                hashes = mixed(hashes, told[at - back])
                self._raise(hashes, told[at])

    def _raise(self, hashes: NDArray[np.int64], tokens: NDArray[np.int64]) -> None:
        """In order: of the followers of one context, one a round."""
        for _ in range(_ROUNDS):
            places, first = np.unique(hashes >> _HASH_BITS - WORDS_BITS, return_index=True)
            words, token, check = self.words[places], tokens[first], hashes[first] & 255
            is_known = (words != 0) & (words >> CHECK_SHIFT == check)
            sure, held = words >> TOKEN_BITS & SURE_MAX, words & _TOKEN
            is_same, is_kept = is_known & (held == token), is_known & (sure > 0)
            now = np.where(is_same, np.minimum(sure + 1, SURE_MAX), np.where(is_kept, sure - 1, 0))
            self.words[places] = np.where(is_kept, held, token) | now << TOKEN_BITS | check << CHECK_SHIFT
            if len(first) == len(hashes):
                return
            hashes, tokens = np.delete(hashes, first), np.delete(tokens, first)


def follower(words: Any, key: int, own_key: int, tokens: list[int]) -> int | None:
    """The likeliest that the table has, as the kernel reads it."""
    best, found = 0, None
    for source, hashes in enumerate((own_key, key, _ANY)):
        for back in range(1, CONTEXT + 1):
            hashes = mixed(hashes, ([0] * CONTEXT + tokens)[-back])
            word = int(words[hashes >> _HASH_BITS - WORDS_BITS])
            kind = (CONTEXT * source + CONTEXT - back) * (SURE_MAX + 1) + (word >> TOKEN_BITS & SURE_MAX)
            if word != 0 and word >> CHECK_SHIFT == hashes & 255 and ODDS[kind] > best:
                best, found = ODDS[kind], word & _TOKEN
    return found
