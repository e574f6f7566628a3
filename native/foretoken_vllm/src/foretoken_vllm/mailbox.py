"""What the engine's step thread and the link's thread tell each other: two bounded queues without a lock.

`deque.append` and `deque.popleft` are atomic, so neither thread ever waits for the other. A queue that is full
drops, and both sides find the hole by offset and ask for what is missing: nothing is lost for good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

UP_MAX = 8192
DOWN_MAX = 4096

# group, sample, offset in the response's output, tokens.
Made = tuple[str, int, int, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Began:
    """Up: the engine runs a group; the link registers it. Again: harmless."""

    epoch: int
    group: str
    prompt: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """Up: the tokens of one step, and tokens that came with chunks or were not sent before."""

    epoch: int
    made: list[Made]
    given: list[Made]


# group, sample, output tokens before the chunk less those that it was given (rows.Request.base).
Who = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Stepped:
    """Up: a step of a batch that is as it was in the step before: row i had `totals[i]` tokens and made `tokens[i]`."""

    epoch: int
    who: tuple[Who, ...]
    totals: list[int]
    tokens: list[list[int]]

    def made(self) -> list[Made]:
        """As a Batch has it."""
        rows = zip(self.who, self.totals, self.tokens, strict=True)
        return [(name, index, base + total, tokens) for (name, index, base), total, tokens in rows]


@dataclass(frozen=True, slots=True)
class SteppedRows:
    """Up: as Stepped, in arrays: row i had `totals[i]` tokens and made the first `counts[i]` of `tokens[i]`."""

    epoch: int
    who: tuple[Who, ...]
    totals: NDArray[Any]
    tokens: NDArray[Any]
    counts: NDArray[Any]

    def made(self) -> list[Made]:
        """As a Batch has it."""
        rows = zip(self.who, self.totals.tolist(), self.tokens.tolist(), self.counts.tolist(), strict=True)
        return [(name, i, base + total, tokens[:count]) for (name, i, base), total, tokens, count in rows if count > 0]


@dataclass(frozen=True, slots=True)
class Lacks:
    """Up: the engine's replica has `have` tokens and was given later ones."""

    epoch: int
    group: str
    sample: int
    have: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Up: the engine has no more use for the group."""

    epoch: int
    group: str


@dataclass(frozen=True, slots=True)
class Advanced:
    """Up: other weights, or another run; everything of the old ones is forgotten. Appended by `Mailbox.advance`."""

    epoch: int
    era: int


@dataclass(frozen=True, slots=True)
class LacksPast:
    """Up: responses of earlier epochs came before the group's prompt was in the core; all of them are to come again."""

    epoch: int
    group: str


Up = Began | Batch | Stepped | SteppedRows | Lacks | LacksPast | Ended | Advanced


@dataclass(frozen=True, slots=True)
class Delta:
    """Down: tokens of a sibling, 32-bit little-endian."""

    epoch: int
    group: str
    sample: int
    offset: int
    tokens: bytes


@dataclass(frozen=True, slots=True)
class Wants:
    """Down: the link has `have` tokens of a response of this engine and was given later ones."""

    epoch: int
    group: str
    sample: int
    have: int


@dataclass(frozen=True, slots=True)
class WantsGroup:
    """Down: the link does not know the group (any more)."""

    epoch: int
    group: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Down: the draft server's epoch, where the engine has none of its own yet."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Past:
    """Down: a piece of an earlier epoch's response, after its first `offset` tokens; its pieces come in order."""

    epoch: int
    group: str
    offset: int
    tokens: bytes


Down = Delta | Past | Wants | WantsGroup | Adopt


@dataclass(frozen=True, slots=True)
class Budget:
    """Draft tokens of one step, all requests together, as the sidecar allows until then (time.monotonic)."""

    step_tokens: int
    until: float


class Mailbox:
    """`up` drops its oldest entry when full; the link puts nothing `down` when that is full.

    An Advanced that was dropped would leave the link at the old weights, deaf to everything that follows. So the newest
    era (how often the engine has advanced, and the epoch) stands beside the queue as well.
    """

    def __init__(self) -> None:
        self.up: deque[Up] = deque(maxlen=UP_MAX)
        self.down: deque[Down] = deque(maxlen=DOWN_MAX)
        # Replaced as a whole by the engine, after its Advanced was appended.
        self.era: tuple[int, int] = (0, 0)
        # Replaced as a whole by the link; None: the engine decides alone.
        self.budget: Budget | None = None

    def advance(self, epoch: int) -> None:
        """The engine has other weights, or serves another run."""
        era = self.era[0] + 1
        self.up.append(Advanced(epoch, era))
        self.era = (era, epoch)

    def has_room_down(self, count: int = 1) -> bool:
        """Only the link appends, so what it sees here can only become more room."""
        return len(self.down) + count <= DOWN_MAX
