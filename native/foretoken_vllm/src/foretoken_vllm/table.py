"""Tables of continuations: what the second model runner's drafts are made of, a tree for each request.

The host is a step behind the device: when it drafts, the device has sampled tokens that it has not seen. So it drafts a
tree from the last token that it knows, and the device walks the tree with what it has sampled since (walk.py). Where it
has left the tree, it goes on with what followed the same tokens. The core writes both in its own memory, which the
device reads, and assembly/tables.ts and assembly/followers.ts describe them.
"""

from __future__ import annotations

import numpy as np

from . import abi
from .core import SuffixCore

# Above a token and its parent in the word of a node: how likely it is where its parent is right, in sixteenths.
ODDS_SHIFT = abi.TABLE_TOKEN_BITS + abi.TABLE_PARENT_BITS
# Of a follower's word.
CHECK_SHIFT = abi.TABLE_TOKEN_BITS + 2
FACTOR = 0x2C1B3C6D
# How often such a follower was right in replays, in parts of a thousand: of the own text, the group's, any; behind
# three tokens, two, one; by how sure it is. The most likely is drafted.
# fmt: off
ODDS = (
    400, 583, 643, 827, 313, 505, 576, 798, 210, 397, 492, 758,
    324, 472, 546, 794, 245, 410, 511, 768, 157, 337, 463, 707,
    309, 464, 543, 791, 232, 395, 507, 765, 142, 325, 463, 704,
)
# fmt: on
# What a table says of a token is of a kind: in the tree by its odds (two sixteenths) and by how many tokens before it
# are matched, from these on; outside by the odds above.
MATCH_BOUNDS = (4, 16)
TREE_KINDS = 24
KINDS = TREE_KINDS + len(ODDS)


class Tables:
    """Views of one core's area of tables, valid as long as it is kept: it keeps the core's memory."""

    def __init__(self, core: SuffixCore, slots: int) -> None:
        """Takes the area; the core has no group yet."""
        # Its memory goes with it.
        self._core = core
        self.area = np.frombuffer(core.reserve_tables(slots), np.int32)
        begin, row = abi.TABLE_AREA_WORDS, abi.TABLE_ROW_WORDS
        end = begin + 2 * slots * row
        self.selected = self.area[:1]
        """Which of the two buffers is whole."""
        self.buffers = self.area[begin:end].reshape(2, slots, row)
        self.followers = self.area[end:]

    def clear(self, slot: int) -> None:
        """The slot belongs to another request."""
        self.buffers[:, slot, 0] = 0
