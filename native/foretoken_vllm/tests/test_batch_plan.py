"""A step of a batch that stayed as it was does what any step does: the same histories, with the short path and without.

Histories are drawn by a seed: requests come, go and move, groups are lost, weights change, the link asks and answers.
"""

from __future__ import annotations

import copy
import random
import time
from array import array
from typing import Any

import pytest

from foretoken_vllm.budget import DraftBudget
from foretoken_vllm.core import CoreTrapError
from foretoken_vllm.link import Link
from foretoken_vllm.mailbox import Adopt, Batch, Budget, Delta, Stepped, Wants, WantsGroup
from foretoken_vllm.proposer import ForetokenProposer
from foretoken_vllm.replica import Replica
from harness import VOCABULARY, Chunk, Runner, engine, extra

STEPS = 400
GROUPS = ("a", "b", "c")
PROMPT = [1, 2, 3]
_EVENTS = ("shuffle", "drop", "drop", "absent", "budget", "budget", "weights", "post", "post", "post", "begin")
STORY_TOKENS = 200
CHANGED = 0.1
WITHHELD_BELOW = 2.0
CUT_BELOW = 0.1


class Judged(DraftBudget):
    """What is chosen does not depend on the time that steps take; some drafts are withheld, some cut short."""

    def probability_min(self, requests: int) -> float:
        return 0.05

    def choose(self, requests: int, probabilities: list[float], whole: float | None = None) -> float:
        return 2.0 if sum(probabilities) < WITHHELD_BELOW else CUT_BELOW


class Side:
    """One proposer with its runner, and a link whose thread was not started: the test reads what it is told."""

    def __init__(self, *, is_quick: bool) -> None:
        self.proposer, self.runner = engine(probability_min=0)
        self.proposer._budget = Judged()
        self.proposer._has_lineups = is_quick
        made = self.proposer
        self.proposer._link = Link(made._settings, made._mailbox, made.faults, made.stats, made.telemetry)

    @property
    def replica(self) -> Replica:
        """There is always one."""
        found = self.proposer._replica
        assert found is not None
        return found

    def told(self) -> list[Any]:
        """What the link was told since, in the long form."""
        said: list[Any] = []
        up = self.proposer._mailbox.up
        while up:
            item = up.popleft()
            if isinstance(item, Stepped):
                said.append((item.epoch, item.made(), []))
            elif isinstance(item, Batch):
                said.append((item.epoch, item.made, item.given))
            else:
                said.append(item)
        return said

    def state(self) -> Any:
        """Of the core and of the counters that do not measure time."""
        proposer, counters = self.proposer, self.proposer.counters
        proposer._settle_ledger()
        return (
            self.replica.used_bytes(),
            self.replica.tokens_taken,
            sorted(self.replica.groups),
            (counters.steps, counters.requests, counters.drafted, counters.accepted),
            (counters.over_budget, counters.untracked, counters.withheld),
            proposer._epoch,
            dict(proposer.faults.counts),
        )

    def samples(self) -> Any:
        """What each response is thought to have, once the requests are up to date."""
        self.proposer._leave()
        groups = self.replica.groups.values()
        return {(group.name, one.index): (one.have, one.sent) for group in groups for one in group.samples.values()}


class History:
    """The same events for both sides, drawn by one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sides = [Side(is_quick=True), Side(is_quick=False)]
        self.stories = {group: [self.random.randrange(10, VOCABULARY) for _ in range(STORY_TOKENS)] for group in GROUPS}
        self.made: dict[str, tuple[str | None, int]] = {}
        self.ends: dict[str, int] = {}
        self.names = 0
        self.epoch = 0
        self.has_epochs = seed % 2 == 0
        # Share of requests without a group.
        self.strangers = 0.1 if seed % 5 == 4 else 0.002
        # With few, two requests make the same response now and then.
        self.indexes = 300 if seed % 4 > 1 else 12

    def draw(self, group: str | None, at: int, count: int) -> list[int]:
        """The story as this response tells it."""
        told = self.stories[group][at : at + count] if group is not None else [7] * count
        return [self.random.randrange(10, VOCABULARY) if self.random.random() < CHANGED else token for token in told]

    def begin(self) -> None:
        """A request, of a group or of none."""
        name = f"r{self.names}"
        self.names += 1
        group = self.random.choice(GROUPS) if self.random.random() > self.strangers else None
        offset = self.random.choice((0, 0, 0, 12))
        fields: dict[str, Any] = {}
        if group is not None:
            fields = extra(group, self.random.randrange(self.indexes), offset=offset)
            if self.has_epochs:
                fields["foretoken_epoch"] = self.epoch
        given = PROMPT + self.draw(group, 0, offset)
        tokens_max = self.random.choice((9, 40, 1000, 1000))
        for side in self.sides:
            side.runner.add(Chunk(name, list(given), dict(fields), max_tokens=tokens_max))
        self.made[name] = (group, offset)
        # A little beyond what the request allows, which no engine does.
        self.ends[name] = min(STORY_TOKENS - 10, offset + tokens_max)

    def finish(self) -> None:
        """Some request; another takes its request."""
        name = self.random.choice(list(self.made))
        del self.made[name]
        for side in self.sides:
            side.runner.finish(name)

    def post(self) -> None:
        """Something from the link."""
        group = self.random.choice(GROUPS)
        sample = self.random.randrange(300) if self.random.random() < 0.7 else 0
        known = list(self.sides[0].replica.groups.get(group, _NOBODY).samples)
        if known and self.random.random() < 0.5:
            sample = self.random.choice(known)
        tokens = array("i", self.draw(group, 0, self.random.randrange(1, 40)))
        item = self.random.choice(
            (
                Delta(self.epoch, group, sample, self.random.choice((0, 0, 3)), tokens.tobytes()),
                Wants(self.epoch, group, sample, self.random.randrange(20)),
                WantsGroup(self.epoch, group),
                Adopt(0),
            )
        )
        for side in self.sides:
            side.proposer._mailbox.down.append(copy.copy(item))

    def event(self) -> None:
        """One of what happens seldom."""
        kind = self.random.choice(_EVENTS)
        if kind == "begin":
            self.begin()
        elif kind == "post":
            self.post()
        elif kind == "shuffle":
            order = self.random.sample(range(len(self.made)), len(self.made))
            for side in self.sides:
                side.runner.chunks = [side.runner.chunks[i] for i in order]
        elif kind == "budget":
            told = Budget(self.random.choice((0, 3, 40)), time.monotonic() + self.random.choice((-1, 3600)))
            now = self.random.choice((None, told))
            for side in self.sides:
                side.proposer._mailbox.budget = now
        elif kind == "weights" and self.random.random() < 0.3:
            self.epoch += 1
            if not self.has_epochs:
                for side in self.sides:
                    side.runner.reload_weights()
        elif kind in ("drop", "absent"):
            name = self.random.choice(GROUPS)
            for side in self.sides:
                group = side.replica.groups.get(name)
                if group is not None and (kind == "drop" or group.handle < 0):
                    side.replica.drop(group)
                elif group is not None and group.handle > 0:
                    # Its next record is refused, as when the core has no room.
                    side.replica._core.drop(group.handle)

    def sampled(self) -> dict[str, list[int]]:
        """What each request makes in a step; some are still in prefill."""
        found: dict[str, list[int]] = {}
        has_prefill = self.random.random() < 0.03
        for name, (group, at) in list(self.made.items()):
            if has_prefill and self.random.random() < 0.3:
                continue
            tokens = self.draw(group, at, self.random.choice((1, 1, 1, 2, 3, 5)))
            if not tokens:
                continue
            if self.random.random() < 0.0003:
                tokens[0] = -1
            found[name] = tokens
            self.made[name] = (group, at + len(tokens))
        return found

    def step(self) -> None:
        """Both sides; they say and draft the same."""
        for name in [name for name, (_group, at) in self.made.items() if at > self.ends[name]]:
            del self.made[name]
            for side in self.sides:
                side.runner.finish(name)
        while len(self.made) < 3:
            self.begin()
        if self.random.random() < 0.03:
            self.begin()
        if len(self.made) > 8:
            self.finish()
        if self.random.random() < 0.08:
            self.event()
        sampled = self.sampled()
        rests, proposes = self.random.random() < 0.02, self.random.random() > 0.02
        for side in self.sides:
            side.proposer._budget._rest = int(rests)
        quick, slow = (side.runner.step(sampled, propose=proposes) for side in self.sides)
        assert quick == slow
        assert self.sides[0].told() == self.sides[1].told()
        assert self.sides[0].state() == self.sides[1].state()


class _Nobody:
    samples: dict[int, Any] = {}  # noqa: RUF012 - never written


_NOBODY: Any = _Nobody()


@pytest.mark.parametrize("seed", range(12))
def test_the_same_history_gives_the_same_drafts_tokens_and_words_to_the_link(seed: int) -> None:
    history = History(seed)
    for step in range(STEPS):
        history.step()
        # Where the requests are brought up to date again and again, an error of that alone would not be seen.
        if step % 50 == 49 and seed % 3 == 0:
            assert history.sides[0].samples() == history.sides[1].samples()
    quick, slow = (side.proposer for side in history.sides)
    assert history.sides[0].samples() == history.sides[1].samples()
    assert quick.counters.quick > (0 if history.strangers > 0.05 else STEPS // 20)
    assert slow.counters.quick == 0
    assert quick.counters.drafted > STEPS
    assert quick.counters.withheld > 0


def test_a_trap_in_a_step_of_the_same_batch_ends_in_no_drafts_and_another_core(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer, runner = engine()
    runner.add(Chunk("r", list(PROMPT), extra("g", 0)))
    for token in range(10, 16):
        runner.step({"r": [token]})
    assert proposer._plan is not None and proposer._plan.is_behind
    replica = proposer._replica
    assert replica is not None

    def trap(*_arguments: object) -> None:
        raise CoreTrapError("unreachable")

    with monkeypatch.context() as patch:
        patch.setattr(replica._core, "step", trap)
        assert runner.step({"r": [16]}) == {"r": []}
    for token in range(17, 24):
        runner.step({"r": [token]})
    assert proposer._plan is not None and proposer._plan.is_behind
    assert replica.groups["g"].samples[0].have <= 14
    assert _have(proposer) == 14


def _have(proposer: ForetokenProposer) -> int:
    proposer._leave()
    replica = proposer._replica
    assert replica is not None
    return replica.groups["g"].samples[0].have


def test_a_batch_of_no_group_asks_the_core_nothing_and_is_left_when_one_comes() -> None:
    proposer, runner = engine()
    runner.add(Chunk("x", list(PROMPT), {}))
    for token in range(10, 40):
        assert runner.step({"x": [token]}) == {"x": []}
    assert proposer._plan is not None and proposer._plan.heads == []
    tell_story(runner)
    runner.add(Chunk("r", list(PROMPT), extra("g", 9)))
    assert runner.step({"x": [50], "r": [10, 11]})["r"] == [12, 13, 14]
    assert runner.step({"x": [51], "r": [12]})["r"] == [13, 14]
    assert runner.step({"x": [52], "r": [13]}) == {"x": [], "r": [14]}


def tell_story(runner: Runner) -> None:
    """Four siblings that end."""
    for sample in range(4):
        name = f"s{sample}"
        runner.add(Chunk(name, list(PROMPT), extra("g", sample)))
        runner.step({"x": [9], name: [10, 11, 12, 13, 14]})
        runner.finish(name)
