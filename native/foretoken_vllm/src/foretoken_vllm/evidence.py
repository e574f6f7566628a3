"""How likely a head's draft tokens and a table's are, by place and kind, from what both said and what came.

The walk notes for each place of a draft what the head has drafted and what the table would have (walk.py). A step later
the host has the tokens, and judges both, whichever was drafted: up to the first draft token that was refused, that one
included, and only where the tokens before it are those that were drafted. So nothing has to be tried out to be known.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import abi
from .table import KINDS, MATCH_BOUNDS, ODDS, TREE_KINDS

# Steps whose notes are kept: they are read a step after they were made, and up to two steps are under way.
NOTES_KEPT = 4
# What is assumed before anything is seen weighs as much as so many tokens; a token counts half after so many others.
_WEIGHT = 8.0
_SEEN_MAX = 500.0
_HEAD_RATE = 0.7
_LEARN_STEPS = 16

Judged = tuple[list[int], list[int]]


class Evidence:
    """Of the thread of the outputs; the device writes `notes` and reads `rather`, whenever it likes."""

    def __init__(self, notes: NDArray[np.int32], rather: NDArray[np.int32]) -> None:
        """`notes`: [NOTES_KEPT, slots, 1 + 2 * places]. `rather`: [places, KINDS + 1], 1: if they differ, the table's.

        A note has the number of the request's tokens when it was made, the head's tokens, and the table's with their
        kinds; below 0: none.
        """
        self._notes, self._rather = notes, rather
        self._places = np.arange(rather.shape[0])
        # By whether there is a head's token, whether it is the table's, whether it is right, and the table's is.
        self._seen = np.zeros((len(self._places), KINDS + 1, 2, 2, 2, 2))
        tree = (np.arange(TREE_KINDS) // (len(MATCH_BOUNDS) + 1) + 0.5) / 8
        self._odds = np.concatenate([tree, np.array(ODDS) / 1000, [0.0]])
        self._steps = 0
        self.learn()

    def judge(
        self,
        step: int,
        slots: NDArray[np.int64],
        totals: NDArray[np.int64],
        tokens: NDArray[np.int32],
        counts: NDArray[np.int32],
    ) -> Judged:
        """Of what was noted in `step`, for requests that had `totals` tokens and have got `counts` more.

        By place: tokens that were drafted behind right ones, and those of which the table was right.
        """
        notes, places = self._notes[step % NOTES_KEPT, slots], len(self._places)
        came = tokens[:, :places]
        width = came.shape[1]
        at = self._places[:width]
        head, said = notes[:, 1 : 1 + width], notes[:, 1 + places : 1 + places + width]
        is_noted = (at < counts[:, None]) & (notes[:, :1] == totals[:, None])
        kinds = np.where(said < 0, KINDS, said >> abi.TABLE_TOKEN_BITS)
        token = np.where(said < 0, -1, said & (1 << abi.TABLE_TOKEN_BITS) - 1)
        what = (head >= 0) * 8 + ((head >= 0) & (head == token)) * 4 + (head == came) * 2 + (token == came)
        cells = ((at * (KINDS + 1) + kinds) * 16 + what)[is_noted]
        found = np.bincount(cells, minlength=self._seen.size).reshape(self._seen.shape)
        self._seen += found
        self._steps += 1
        if self._steps % _LEARN_STEPS == 0:
            self.learn()
        return found.sum(axis=(1, 2, 3, 4, 5)).tolist(), found[..., 1].sum(axis=(1, 2, 3, 4)).tolist()

    def learn(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """How often the head's was right, and the table's, where they differ: by place and kind.

        Of few tokens, what is known of the place, and of the kind.
        """
        seen = self._seen
        drafted = seen[:, :, 1].sum(axis=(1, 2, 4))
        head = _share(drafted[:, 1], drafted.sum(axis=1), _HEAD_RATE)[:, None]
        kinds = _share(seen[..., 1].sum(axis=(0, 2, 3, 4)), seen.sum(axis=(0, 2, 3, 4, 5)), self._odds)
        table = _share(seen[..., 1].sum(axis=(2, 3, 4)), seen.sum(axis=(2, 3, 4, 5)), kinds)
        # Unless seen otherwise, neither is righter for the other's sake; of two that differ one is right at most.
        differs, differ = 1 - table * head, seen[:, :, 1, 0]
        tried = differ.sum(axis=(2, 3))
        of_head = _share(differ[:, :, 1].sum(axis=2), tried, (1 - table) * head / differs)
        of_table = _share(differ[..., 1].sum(axis=2), tried, table * (1 - head) / differs)
        self._rather[:] = of_table > of_head
        seen *= np.where(seen.sum(axis=(2, 3, 4, 5), keepdims=True) > _SEEN_MAX, 0.5, 1.0)
        return of_head, of_table


def _share(right: Any, tried: Any, before: Any) -> Any:
    return (right + _WEIGHT * before) / (tried + _WEIGHT)
