"""The token logs that the link keeps: what this engine made, to be sent again, and what siblings made elsewhere.

Belongs to the link's thread. Tokens are 32-bit little-endian, as the wire and the core have them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .codec import TOKEN_BYTES

# Tokens before an accepted draft that are looked for together with it.
TRACE_CONTEXT = 3
# Places of one log that are looked at.
_PLACES_MAX = 4
# Bytes of a group's texts that are looked at, the newest of each: the search holds the interpreter's lock, some 10 us.
TRACE_BYTES_MAX = 2**16


@dataclass(slots=True, eq=False)
class LinkSample:
    """Counts are tokens. `sent`: at the server or on the way; `fed`: handed to the engine's replica."""

    index: int
    log: bytearray = field(default_factory=bytearray)
    sent: int = 0
    sent_at_fetch: int = 0
    fed: int = 0
    is_own: bool = False
    send_at: float = 0.0
    lost_have: int = -1
    lost_since: float = 0.0
    # Where the tokens that this engine made, or was given with a chunk, begin and end: pairs, in order.
    own: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens in the log."""
        return len(self.log) // TOKEN_BYTES

    def take(self, offset: int, tokens: bytes) -> int:
        """Appends what is new; how many tokens. -1: tokens before `offset` are missing."""
        have = self.length
        if offset > have:
            return -1
        fresh = tokens[(have - offset) * TOKEN_BYTES :]
        self.log += fresh
        return len(fresh) // TOKEN_BYTES

    def made_here(self, begin: int, end: int) -> None:
        """Tokens [begin, end) were; chunks come in order, so the list stays as short as the response moves seldom."""
        if self.own and begin <= self.own[-1]:
            self.own[-1] = max(self.own[-1], end)
        else:
            self.own += (begin, end)

    def is_from_here(self, at: int) -> bool:
        """Whether token `at` was generated here, or came with a chunk."""
        return bisect_right(self.own, at) % 2 == 1

    def part(self, begin: int, end: int) -> bytes:
        """Tokens [begin, end)."""
        return bytes(self.log[begin * TOKEN_BYTES : end * TOKEN_BYTES])


@dataclass(slots=True, eq=False)
class LinkGroup:
    """`state`: new, asked (the registration is under way), ready, refused. `past_state`: new, asked, done."""

    name: str
    prompt: bytes
    used_at: float
    state: str = "new"
    retry_at: float = 0.0
    # Responses of earlier epochs: how many have come, whether the next are asked for, and those to be handed on.
    past_have: int = 0
    past_state: str = "new"
    past: deque[bytes] = field(default_factory=deque)
    samples: dict[int, LinkSample] = field(default_factory=dict)

    def sample(self, index: int) -> LinkSample:
        """Made at its first use."""
        found = self.samples.get(index)
        if found is None:
            found = LinkSample(index)
            self.samples[index] = found
        return found

    def forget_past(self) -> None:
        """It is asked for from its beginning, unless the server is being asked now."""
        self.past_have = 0
        self.past.clear()
        if self.past_state == "done":
            self.past_state = "new"

    def origin(self, before: bytes, accepted: Sequence[int]) -> bool | None:
        """Whether these tokens, after those before them, have been written elsewhere and not here, so far.

        None: nowhere in this group, or in too many places or too much text to examine.
        """
        pattern = before + array("i", accepted).tobytes()
        share = TRACE_BYTES_MAX // (1 + len(self.samples))
        is_whole = len(self.prompt) <= share
        if self.prompt.find(pattern, max(0, len(self.prompt) - share)) >= 0:
            return False
        elsewhere: bool | None = None
        for sample in self.samples.values():
            at = max(0, len(sample.log) - share)
            is_whole = is_whole and at == 0
            for _ in range(_PLACES_MAX):
                at = sample.log.find(pattern, at)
                if at < 0:
                    break
                if at % TOKEN_BYTES == 0:
                    last = (at + len(pattern)) // TOKEN_BYTES - 1
                    if sample.is_from_here(last):
                        return False
                    elsewhere = True
                at += 1
        # What was not looked at may have been written here.
        return elsewhere if is_whole else None

    def lengths(self) -> list[int]:
        """Tokens had, by sample index."""
        if not self.samples:
            return []
        lengths = [0] * (max(self.samples) + 1)
        for index, sample in self.samples.items():
            lengths[index] = sample.length
        return lengths


class Logs:
    """Groups within `bytes_max` and `groups_max`: the one used longest ago goes."""

    def __init__(self, bytes_max: int, groups_max: int) -> None:
        self._bytes_max = bytes_max
        self._groups_max = groups_max
        self.groups: dict[str, LinkGroup] = {}
        self.bytes = 0
        self.dropped = 0

    def begin(self, name: str, prompt: bytes, now: float) -> LinkGroup:
        """The group; one that has another prompt is forgotten first."""
        known = self.groups.get(name)
        if known is not None and known.prompt == prompt:
            known.used_at = now
            return known
        if known is not None:
            self.drop(name)
        group = LinkGroup(name, prompt, now)
        self.groups[name] = group
        self.grow(group, len(prompt))
        return group

    def grow(self, group: LinkGroup, count: int) -> None:
        """`count` bytes more were taken for `group`, which goes last."""
        self.bytes += count
        while self.bytes > self._bytes_max or len(self.groups) > self._groups_max:
            others = (other for other in self.groups.values() if other is not group)
            oldest = min(others, key=lambda other: other.used_at, default=group)
            self.drop(oldest.name)
            self.dropped += 1
            if oldest is group:
                return

    def drop(self, name: str) -> None:
        """Forgets the group, if it is known."""
        group = self.groups.pop(name, None)
        if group is not None:
            self.bytes -= len(group.prompt) + sum(len(s.log) for s in group.samples.values())

    def expire(self, before: float) -> None:
        """Forgets groups not used since `before`."""
        for group in list(self.groups.values()):
            if group.used_at < before:
                self.drop(group.name)

    def clear(self) -> None:
        """Forgets everything."""
        self.groups.clear()
        self.bytes = 0
