"""Drafts are verified as far as they pay, on engines and machines that are made up."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from foretoken_vllm.budget import NONE, PROBABILITY_START, DraftBudget, weights_of
from synthetic import ENGINES, LOADS, best_speed, drafts

LEARN_STEPS = 16
STEPS = 900
# Until it has learnt what steps take.
FIRST = 200


def speeds(engine: str, load: str, requests_at: Callable[[int], int], skill: float) -> tuple[float, float]:
    """Over no drafts at all, and over the best that can be known, without the load."""
    chance = random.Random(7)
    budget, time, factor = DraftBudget(), ENGINES[engine], LOADS[load]
    pool = {n: [drafts(chance, n, skill) for _ in range(8)] for n in {requests_at(step) for step in range(STEPS)}}
    at = took = plain = best = 0.0
    for step in range(STEPS):
        requests = requests_at(step)
        drafted: list[float] = []
        offered = pool[requests][step % 8]
        if budget.wants_drafts():
            drafted = [p for p in offered if p >= budget.probability_min(requests)]
            least = budget.choose(requests, drafted) if drafted else NONE
            drafted = [p for p in drafted if p >= least]
        us = time(requests, len(drafted)) * factor(chance, at) * chance.gauss(1, 0.03)
        at += us / 1e6
        budget.observe(requests, len(drafted), us)
        if step % LEARN_STEPS == 0:
            budget.learn()
        if step >= FIRST:
            tokens = requests + sum(drafted)
            took += time(requests, len(drafted))
            plain += tokens / (requests / time(requests, 0))
            best += tokens / best_speed(time, requests, offered)
    return plain / took, best / took


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("requests", "skill"), [(1, 0.7), (8, 0.4), (48, 0.7), (48, 0.3)])
def test_drafts_never_cost_time_and_bring_nearly_all_that_they_can(
    engine: str, load: str, requests: int, skill: float
) -> None:
    over_plain, over_best = speeds(engine, load, lambda _step: requests, skill)
    assert over_plain >= 0.99
    assert over_best >= 0.93


@pytest.mark.parametrize("load", LOADS)
def test_a_batch_that_shrinks_is_followed(load: str) -> None:
    over_plain, over_best = speeds("bundled", load, lambda step: max(1, 48 - step % 300 // 6), 0.6)
    assert over_plain >= 1.2
    assert over_best >= 0.95


def test_until_anything_is_known_likely_tokens_are_drafted() -> None:
    budget = DraftBudget()
    assert budget.probability_min(32) == PROBABILITY_START
    assert budget.choose(32, [0.9, 0.4]) == 0.0


def known(engine: str) -> DraftBudget:
    """That has seen a thousand steps, the last of 16 requests."""
    budget, chance = DraftBudget(), random.Random(3)
    for step in range(1000):
        requests = chance.randint(1, 64) if step < 900 else 16
        drafted = chance.randint(0, 3 * requests) if step % 4 > 0 else 0
        budget.observe(requests, drafted, ENGINES[engine](requests, drafted))
        if step % LEARN_STEPS == 0:
            budget.learn()
    return budget


def test_the_likeliest_are_taken_as_long_as_they_make_the_engine_faster() -> None:
    budget = known("bundled")
    for _ in range(6):
        budget.wants_drafts()
    # A row takes 220 us, and 48 requests make a token in 348 us of a step of 16.6 ms: 0.64.
    assert budget.choose(48, [0.95] * 60 + [0.3] * 9) == 0.95
    assert budget.choose(48, [0.5] * 60) == NONE
    assert budget.probability_min(48) == 0.5
    # One request makes a token in 7.7 ms.
    assert budget.choose(1, [0.5, 0.3, 0.1]) == 0.1


def test_drafts_that_do_not_pay_are_soon_made_seldom() -> None:
    budget = known("dear")
    made = 0
    for _ in range(1000):
        if budget.wants_drafts():
            made += 1
            assert budget.choose(16, [0.3] * 16) in (0.0, NONE)
    assert 100 <= made <= 130


def test_both_ways_are_tried_now_and_then() -> None:
    budget = known("gpu")
    budget.probability_min(16)
    chosen = []
    for _ in range(1200):
        assert budget.wants_drafts()
        chosen.append(budget.choose(16, [0.9] * 16))
    assert 3 <= chosen.count(NONE) <= 6


def batch_us(requests: int, tokens: int, skill: float, *, drafting: bool) -> float:
    """Until the last of a batch that only shrinks has its tokens; of each request other drafts are accepted."""
    budget, chance, time = known("bundled"), random.Random(5), ENGINES["bundled"]
    ones = [chance.betavariate(1.5 * skill, 1.5 * (1 - skill)) for _ in range(requests)]
    made, took = [0] * requests, 0.0
    while live := [i for i in range(requests) if made[i] < tokens]:
        slowest = min(made)
        weights = weights_of([made[i] - slowest for i in live])
        paths = [[ones[i] ** depth for depth in range(1, 9) if ones[i] ** depth >= 0.06] for i in live]
        offered = [weight * p for weight, path in zip(weights, paths, strict=True) for p in path]
        least = budget.choose(len(live), offered, sum(weights)) if drafting and offered else NONE
        drafted = 0
        for i, weight, path in zip(live, weights, paths, strict=True):
            kept = sum(weight * p >= least for p in path)
            drafted += kept
            made[i] += 1
            while kept > 0 and chance.random() < ones[i]:
                kept -= 1
                made[i] += 1
        took += time(len(live), drafted)
    return took


@pytest.mark.parametrize("skill", [0.3, 0.6])
@pytest.mark.parametrize("requests", [4, 16, 32, 64])
def test_a_batch_that_ends_with_its_slowest_request_is_not_slower(requests: int, skill: float) -> None:
    assert batch_us(requests, 96, skill, drafting=False) / batch_us(requests, 96, skill, drafting=True) >= 0.97
