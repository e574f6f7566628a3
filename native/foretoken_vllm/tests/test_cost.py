"""That a draft token must pay for its row: on step times that are made up, with noise."""

from __future__ import annotations

import random

import pytest

from foretoken_vllm.cost import MARGIN, PROBABILITY_CEILING, PROBABILITY_FLOOR, PROBABILITY_START, StepCost

# Microseconds: of a step, of each request.
BASE, REQUEST = 3000.0, 200.0


def observed(seed: int, draft: float) -> StepCost:
    """Steps of 17 to 31 requests and 0 to 100 draft tokens of `draft` us."""
    chance = random.Random(seed)
    cost = StepCost()
    for _ in range(3000):
        requests, count = chance.randint(17, 31), chance.randint(0, 100)
        us = (BASE + REQUEST * requests + draft * count) * chance.gauss(1.0, 0.03)
        cost.observe(requests, count, us)
    return cost


def test_until_anything_is_known_likely_tokens_are_drafted() -> None:
    assert StepCost().probability_min(32) == PROBABILITY_START


@pytest.mark.parametrize("seed", range(4))
def test_a_token_is_worth_its_row_where_it_gains_the_margin(seed: int) -> None:
    plain = BASE + 24 * REQUEST
    assert observed(seed, 50.0).probability_min(24) == pytest.approx(MARGIN * 50 * 24 / plain, rel=0.2)


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_cost_nothing_leave_the_floor_and_dear_ones_meet_the_ceiling(seed: int) -> None:
    assert observed(seed, 0.0).probability_min(24) == PROBABILITY_FLOOR
    assert observed(seed, 400.0).probability_min(24) == PROBABILITY_CEILING


def test_a_step_in_which_the_machine_did_something_else_is_left_out() -> None:
    cost = observed(3, 50.0)
    before = cost.probability_min(24)
    for _ in range(16):
        cost.observe(24, 100, 1e6)
    assert cost.probability_min(24) == before
