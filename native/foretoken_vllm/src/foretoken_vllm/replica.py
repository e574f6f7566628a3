"""The engine's replica of its groups' token logs, in one core. Tokens are taken by offset, from any source.

Belongs to the step thread. Collects a step's records and crosses into the core once. What does not fit in the core
drafts nothing and is counted; the group used longest ago goes first.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import abi
from .core import BUDGET_NONE, StepDrafts, SuffixCore, float_word
from .faults import Faults
from .settings import Settings
from .table import Tables

# Tokens passed in one step beside its own: a moved response, a prompt, siblings from elsewhere.
CATCH_UP_TOKENS = 4096
WEIGHT_ONE = float_word(1.0)
# What history takes of the core for each token, with some to spare, and the part of the memory that it may fill
# (src/core/draft/replica.ts).
PAST_TOKEN_BYTES = 64
PAST_PART = 0.5


class Sample:
    """One response: tokens in the core (`have`) and tokens handed to the link (`sent`)."""

    __slots__ = ("have", "index", "sent")

    def __init__(self, index: int) -> None:
        self.index = index
        self.have = 0
        self.sent = 0


class Group:
    """Responses to one prompt. `handle` > 0: its prompt is in the core and it has not run out of room."""

    __slots__ = (
        "handle",
        "is_alive",
        "making",
        "name",
        "prompt",
        "prompt_done",
        "samples",
        "used_at",
    )

    def __init__(self, name: str, prompt: array[int], now: float) -> None:
        self.name = name
        self.prompt = prompt
        self.prompt_done = 0
        self.handle = 0
        self.making = 0
        self.samples: dict[int, Sample] = {}
        self.used_at = now
        self.is_alive = True

    def sample(self, index: int) -> Sample:
        """Made at its first use; 0 <= index < abi.SEQUENCES_MAX."""
        sample = self.samples.get(index)
        if sample is None:
            sample = Sample(index)
            self.samples[index] = sample
        return sample


class Replica:
    """The groups of one engine. `words` and `owners`, `draft_words`: the records that `cross` hands over."""

    def __init__(self, settings: Settings, faults: Faults, vocabulary: int, *, slots: int = 0) -> None:
        """`slots`: of a device that reads the core's tables; 0: there is none."""
        self._settings = settings
        self._slots = slots
        self._faults = faults
        self._vocabulary = vocabulary
        # Those of cores that have trapped too: a device may still read their tables.
        self._cores: list[SuffixCore] = []
        self._core = self._new_core()
        self.groups: dict[str, Group] = {}
        self._making: list[Group] = []
        self.allowance = CATCH_UP_TOKENS
        self.words: list[int] = []
        self.owners: list[Group] = []
        self.draft_words: list[int] = []
        self.tokens_taken = 0
        # Of responses of earlier epochs.
        self.past_tokens = 0
        # How often everything was forgotten.
        self.cleared = 0
        # How often a group was dropped or given up.
        self.losses = 0

    def _new_core(self) -> SuffixCore:
        # A step of a device's tables is long, and the engine's thread goes on meanwhile.
        core = SuffixCore(limit_bytes=self._settings.core_mb * 2**20, holds_lock=self._slots == 0)
        if self._slots > 0:
            self.tables = Tables(core, self._slots)
        self._cores.append(core)
        return core

    def used_bytes(self) -> int:
        """Bytes that the groups take in the core."""
        return self._core.used_bytes()

    @property
    def is_making(self) -> bool:
        """Prompts wait to cross."""
        return bool(self._making)

    def create(self, name: str, prompt: array[int], now: float) -> Group:
        """A group whose prompt crosses into the core in pieces, from the next step on."""
        if len(self.groups) >= self._settings.groups_max:
            self._drop_oldest()
        group = Group(name, prompt, now)
        self.groups[name] = group
        self._making.append(group)
        return group

    def drop(self, group: Group) -> None:
        """Its rows see `is_alive` and look again."""
        self.losses += 1
        group.is_alive = False
        if self.groups.get(group.name) is group:
            del self.groups[group.name]
        self._free(group)

    def clear(self, *, trapped: bool = False) -> None:
        """Forgets everything; a core that trapped is replaced by another."""
        for group in list(self.groups.values()):
            group.is_alive = False
            if not trapped:
                self._free(group)
        self.groups.clear()
        self._making.clear()
        # In place: a step that is being written holds these lists.
        self.words.clear()
        self.owners.clear()
        self.draft_words.clear()
        self.cleared += 1
        self.losses += 1
        if trapped:
            self._core = self._new_core()

    def begin(self) -> None:
        """A step begins: what an earlier one left is forgotten, its tokens come again by offset."""
        self.allowance = CATCH_UP_TOKENS
        if self.words or self.draft_words:
            self.clear()
        while self._making and self.allowance > 0:
            self._make()

    def take(self, group: Group, sample: Sample, offset: int, tokens: array[int]) -> bool:
        """Tokens made elsewhere. False: some before `offset` are missing."""
        if group.handle < 0:
            return True
        if group.handle == 0 or offset > sample.have:
            return False
        fresh = tokens[sample.have - offset :]
        if len(fresh) == 0:
            return True
        if min(fresh) < 0 or max(fresh) >= self._vocabulary:
            self._faults.add("token", f"group {group.name}: a token out of the vocabulary was sent")
            return True
        self.append(group, sample, fresh.tolist())
        self.allowance -= len(fresh)
        return True

    def take_past(self, group: Group, offset: int, tokens: array[int]) -> bool:
        """A piece of a response of an earlier epoch. False: the group's prompt is not in the core yet.

        The core crosses at once. Beyond half of its memory no history is taken: the rest is for live tokens.
        """
        if group.handle <= 0:
            return group.handle < 0
        needed = len(tokens) * PAST_TOKEN_BYTES
        if self._core.used_bytes() + needed > self._settings.core_mb * 2**20 * PAST_PART:
            return True
        if min(tokens) < 0 or max(tokens) >= self._vocabulary:
            self._faults.add("token", f"group {group.name}: a token out of the vocabulary was sent")
            return True
        self.allowance -= len(tokens)
        status = self._core.history(group.handle, tokens, offset)
        if status == abi.STATUS_OK:
            self.past_tokens += len(tokens)
        elif status == abi.STATUS_FULL:
            self._give_up(group)
        return True

    def append(self, group: Group, sample: Sample, tokens: list[int]) -> None:
        """The sample's next tokens."""
        self.words += (group.handle, sample.index, len(tokens))
        self.words += tokens
        self.owners.append(group)
        sample.have += len(tokens)

    def cross(self, budget: int = BUDGET_NONE) -> StepDrafts | None:
        """The step's one call; None: there were no records. Records that failed stay, for `begin` to see.

        Of all drafts together at most `budget` tokens are kept, the likeliest.
        """
        if not self.owners and not self.draft_words:
            return None
        owners = self.owners
        drafts = self.cross_prepared(owners, array("i", self.draft_words), budget)
        self.owners = []
        self.draft_words = []
        return drafts

    def cross_prepared(self, owners: list[Group], queries: array[int], budget: int) -> StepDrafts:
        """As `cross`, of `words` that were written for these owners, and of draft records that the caller keeps."""
        words = self.words
        drafts = self._core.step(words, len(owners), queries, len(queries) // abi.DRAFT_WORDS, budget)
        self.words = []
        self.tokens_taken += len(words) - abi.APPEND_HEADER_WORDS * len(owners)
        if drafts.failed:
            self._refused(owners, drafts.failed)
        return drafts

    def probabilities(self, count: int) -> list[float]:
        """Of the `count` tokens that the last crossing drafted: that the path up to each is accepted."""
        return self._core.probabilities(count)

    def draft_tables(self, owners: list[Group], records: NDArray[np.int32], tokens: NDArray[Any]) -> None:
        """Takes the tokens of a step, [records, width], and writes the tables of its requests."""
        failed = self._core.table_step(records, tokens)
        self.tokens_taken += int(records[:, 2].sum())
        if failed:
            self._refused(owners, failed)

    def _refused(self, owners: list[Group], records: list[int]) -> None:
        for record in records:
            # One that was dropped since its record was written has no room to run out of.
            if owners[record].is_alive:
                self._give_up(owners[record])

    def _make(self) -> None:
        """A piece of a prompt, so that no step waits for a long one."""
        group = self._making[0]
        if not group.is_alive:
            self._making.pop(0)
            return
        if group.making == 0:
            group.making = self._core.create()
            while group.making == abi.STATUS_FULL and self._drop_oldest(but=group):
                group.making = self._core.create()
        piece = group.prompt[group.prompt_done : group.prompt_done + self.allowance]
        is_full = group.making <= 0 or self._core.prompt(group.making, piece) != abi.STATUS_OK
        group.prompt_done += len(piece)
        self.allowance -= len(piece)
        if is_full:
            self._give_up(group)
        elif group.prompt_done >= len(group.prompt):
            group.handle = group.making
        else:
            return
        self._making.pop(0)

    def _give_up(self, group: Group) -> None:
        """Full: it drafts nothing any more, its tokens are still shared."""
        if group.handle < 0:
            return
        self._faults.add("core full", f"group {group.name} no longer fits in {self._settings.core_mb} MiB")
        self.losses += 1
        self._free(group)
        group.handle = -1

    def _free(self, group: Group) -> None:
        held = group.handle if group.handle > 0 else group.making
        if held > 0:
            self._core.drop(held)
        group.handle = 0
        group.making = 0

    def _drop_oldest(self, but: Group | None = None) -> bool:
        oldest: Group | None = None
        for group in self.groups.values():
            holds = but is None or group.handle > 0
            if group is not but and holds and (oldest is None or group.used_at < oldest.used_at):
                oldest = group
        if oldest is None:
            return False
        self.drop(oldest)
        return True


def group_name(value: Any) -> str | None:
    """The group's id as it was sent; None: it is none (docs/PROTOCOL.md: 1 to 85 UTF-16 units)."""
    if not isinstance(value, str) or not value:
        return None
    return value if len(value.encode("utf-16-le", "surrogatepass")) <= 170 else None
