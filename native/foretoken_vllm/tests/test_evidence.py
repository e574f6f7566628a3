"""What is learnt of a head and of tables, and what is made of it. No vLLM, no Triton."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foretoken_vllm import abi, engine
from foretoken_vllm.evidence import NOTES_KEPT, Evidence
from foretoken_vllm.faults import Faults
from foretoken_vllm.length import LengthBudget
from foretoken_vllm.table import KINDS
from foretoken_vllm.table_drafter import TableDrafter
from harness import config

PLACES = 7
SLOTS = 8
# In the tree, behind a short match, by odds of sixteenths.
UNLIKELY, LIKELY = 0, 7 * 3


class Noted:
    """Evidence, and the notes that a walk would write."""

    def __init__(self) -> None:
        self.notes = np.full((NOTES_KEPT, SLOTS + 1, 1 + 2 * PLACES), -1, np.int32)
        self.rather = np.zeros((PLACES, KINDS + 1), np.int32)
        self.evidence = Evidence(self.notes, self.rather)

    def note(self, step: int, slot: int, total: int, head: list[int], said: list[tuple[int, int]]) -> None:
        row = self.notes[step % NOTES_KEPT, slot]
        row[:] = -1
        row[0] = total
        row[1 : 1 + len(head)] = head
        row[1 + PLACES : 1 + PLACES + len(said)] = [token | kind << abi.TABLE_TOKEN_BITS for token, kind in said]

    def judge(self, step: int, came: list[int], total: int = 10, slot: int = 0) -> tuple[list[int], list[int]]:
        tokens = np.array([came + [0] * (PLACES - len(came))], np.int32)
        return self.evidence.judge(step, np.array([slot]), np.array([total]), tokens, np.array([len(came)], np.int32))


def test_before_anything_is_seen_the_likelier_one_is_drafted() -> None:
    noted = Noted()
    # 15 and 1 sixteenths, and 0.7 of the head.
    assert noted.rather[:, LIKELY].all() and not noted.rather[:, UNLIKELY].any()
    of_head, of_table = noted.evidence.learn()
    assert of_head[0, KINDS] == pytest.approx(0.7) and of_table[0, KINDS] == 0
    # One is right of two that differ: 0.9375 * 0.3 and 0.0625 * 0.7 to 0.0625 * 0.3.
    assert of_table[0, LIKELY] / of_head[0, LIKELY] == pytest.approx(0.9375 * 0.3 / (0.0625 * 0.7))


def test_tokens_are_judged_up_to_the_first_that_was_refused() -> None:
    noted = Noted()
    noted.note(3, 0, 10, [1, 2, 3, 4], [(1, LIKELY), (9, LIKELY), (3, LIKELY)])
    # The second draft token was refused: 9 came.
    assert noted.judge(3, [1, 9]) == ([1, 1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0])
    seen = noted.evidence._seen.sum(axis=1)
    # By head, same, head right, table right.
    assert seen[0, 1, 1, 1, 1] == 1 and seen[1, 1, 0, 0, 1] == 1 and seen.sum() == 2


@pytest.mark.parametrize(("total", "slot", "step"), [(11, 0, 3), (10, 1, 3), (10, 0, 4), (10, SLOTS, 3)])
def test_notes_of_another_step_request_or_text_say_nothing(total: int, slot: int, step: int) -> None:
    noted = Noted()
    noted.note(3, 0, 10, [1, 2], [(1, LIKELY)])
    assert noted.judge(step, [1, 2], total, slot) == ([0] * PLACES, [0] * PLACES)


def test_of_two_that_differ_the_one_that_was_right_more_often_by_place_and_kind() -> None:
    noted = Noted()
    chance = random.Random(3)
    # At the first place a likely kind errs more often than the head, at the second an unlikely one less often.
    for step in range(400):
        first, second = chance.random() < 0.75, chance.random() < 0.2
        noted.note(step, 0, 10, [1, 3], [(2, LIKELY), (4, UNLIKELY)])
        # The text goes on behind the first place only where its draft was accepted; let it always be.
        noted.judge(step, [1 if first else 2, 3 if second else 4])
    of_head, of_table = noted.evidence.learn()
    assert (of_head[0, LIKELY], of_table[0, LIKELY]) == pytest.approx((0.75, 0.25), abs=0.06)
    assert (of_head[1, UNLIKELY], of_table[1, UNLIKELY]) == pytest.approx((0.2, 0.8), abs=0.06)
    assert (noted.rather[0, LIKELY], noted.rather[1, UNLIKELY]) == (0, 1)
    # At a place where nothing was seen by what is known of the kinds.
    assert noted.rather[5, UNLIKELY] == 1


def test_what_was_true_long_ago_is_forgotten() -> None:
    noted = Noted()
    for step in range(3000):
        noted.note(step, 0, 10, [1], [(2, LIKELY)])
        noted.judge(step, [1 if step < 2000 else 2])
        if step == 1999:
            assert noted.rather[0, LIKELY] == 0
    assert noted.rather[0, LIKELY] == 1


LENGTHS = (0, 1, 3, 7)


def parts(length: int) -> list[int]:
    return [part for part in LENGTHS if 0 < part <= length] or [length]


@pytest.mark.parametrize("cost", [0.005, 0.03, 0.15])
@pytest.mark.parametrize(("head", "table"), [(0.7, 0.4), (0.6, 0.55), (0.5, 0.05), (0.75, 0.72)])
def test_a_head_is_asked_for_as_many_tokens_as_pay(cost: float, head: float, table: float) -> None:
    """A token of the head takes `cost` of a step. After 2,000 steps within 3 % of the best fixed choice."""

    def tokens(length: int, asked: int) -> float:
        whole, found = 1.0, 1.0
        for place in range(length):
            whole *= head if place < asked else table
            found += whole
        return found

    def ms(length: int, asked: int) -> float:
        return 7 * (1 + 8 * (length + 1) / 1000) * (1 + cost * max(1, asked))

    budget = LengthBudget(LENGTHS, Faults(), parts)
    chance = random.Random(5)
    under_way = deque([(7, 7)] * 2)
    took = made = 0.0
    for step in range(3000):
        budget.choose(8, 8)
        under_way.append((budget.length, budget.asked))
        length, asked = under_way.popleft()
        budget.observe(8, 8 * length, 1000 * ms(length, asked) * chance.gauss(1, 0.03), asked)
        for _ in range(8):
            accepted = 0
            while accepted < length and chance.random() < (head if accepted < asked else table):
                accepted += 1
            budget.accept(length, accepted, 1, asked)
            reached = min(accepted + 1, length)
            tried = [place < reached for place in range(7)]
            budget.of_table.add(tried, [one and chance.random() < table for one in tried])
        if step % 16 == 0:
            budget.learn()
        if step >= 2000:
            took, made = took + ms(length, asked), made + tokens(length, asked)
    options = [(length, asked) for length in LENGTHS for asked in parts(length)]
    assert made / took >= 0.97 * max(tokens(*one) / ms(*one) for one in options)


def drafter(monkeypatch: pytest.MonkeyPatch, **given: Any) -> tuple[TableDrafter, Any]:
    scheduler = SimpleNamespace(
        dynamic_sd_lookup=None, num_spec_tokens=7, scheduler_config=SimpleNamespace(max_num_seqs=4)
    )
    monkeypatch.setattr(engine, "scheduler", lambda: scheduler)
    made = TableDrafter(config(7, slots=4, **given))
    noted = Noted()
    made.evidence = noted.evidence
    made.choose_among(LENGTHS, parts)
    return made, scheduler


def take(made: TableDrafter, counts: list[int], verified: int, asked: int) -> None:
    """Takes the tokens of a step of requests without a draft group, for which the head drafts as well."""
    made.launched += 1
    made.in_flight.append((made.launched, len(counts), verified * len(counts), True, asked))
    ids = [f"r{i}" for i in range(len(counts))]
    made.take(ids, np.ones((len(counts), 8), np.int32), np.array(counts, np.int32))


def test_a_head_drafts_for_requests_without_siblings_and_its_acceptance_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, scheduler = drafter(monkeypatch)
    assert made.asked == 7
    for _ in range(200):
        take(made, [3, 2], verified=7, asked=3)
    assert made._length.of_head.shares()[:3] == pytest.approx([1, 0.5, 0], abs=0.05)
    assert made._length.of_head.tried[3:] == [0] * 4
    wanted = None if made._length.length == 7 else [made._length.length] * 5
    assert scheduler.dynamic_sd_lookup == wanted
    assert made.faults.total == 0


def test_a_head_that_drafts_alone_drafts_as_without_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    made, scheduler = drafter(monkeypatch)
    for _ in range(100):
        take(made, [1, 1], verified=7, asked=7)
    assert made.asked < 7
    scheduler.dynamic_sd_lookup = [1] * 5
    made.gives_up = True
    take(made, [1, 1], verified=7, asked=7)
    assert scheduler.dynamic_sd_lookup is None and made.asked == 7


def test_a_head_outlives_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    made, scheduler = drafter(monkeypatch, core_mb=8)
    made._replica = None
    take(made, [1, 1], verified=7, asked=7)
    assert made.gives_up and scheduler.dynamic_sd_lookup is None and made.asked == 7
