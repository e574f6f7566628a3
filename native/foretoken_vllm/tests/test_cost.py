"""That a draft token must pay for its row: on step times that are made up, with noise."""

from __future__ import annotations

import random

import pytest

from foretoken_vllm.cost import PROBABILITY_CEILING, PROBABILITY_FLOOR, PROBABILITY_START, StepCost

BASE_US = 3000.0


def observed(seed: int, row_us: float, accepted: float = 0.0) -> StepCost:
    """Steps of 24 requests and 0 to 100 draft tokens, every row of `row_us` us; that part of the drafts is accepted."""
    chance = random.Random(seed)
    cost = StepCost()
    for _ in range(1000):
        drafted = chance.randint(0, 100)
        made = 24 + round(accepted * drafted)
        cost.observe(24, drafted, made, (BASE_US + row_us * (24 + drafted)) * chance.gauss(1.0, 0.03))
    return cost


def test_until_anything_is_known_likely_tokens_are_drafted() -> None:
    assert StepCost().worth(32).probability_min == PROBABILITY_START


@pytest.mark.parametrize("seed", range(4))
def test_a_token_is_worth_its_row_where_it_makes_the_engine_faster(seed: int) -> None:
    # Of the last steps, about: 50 draft tokens each.
    step = BASE_US + 50 * (24 + 50)
    plain = BASE_US + 50 * 24
    assert observed(seed, 50.0).worth(24).probability_min == pytest.approx(50 * 24 / plain, rel=0.15)
    fast = observed(seed, 50.0, accepted=0.5)
    assert fast.worth(24).probability_min == pytest.approx(50 * (24 + 25) / step, rel=0.15)


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_cost_nothing_leave_the_floor_and_dear_ones_meet_the_ceiling(seed: int) -> None:
    assert observed(seed, 0.0).worth(24).probability_min == PROBABILITY_FLOOR
    assert observed(seed, 10_000.0).worth(24).probability_min == PROBABILITY_CEILING


def test_a_row_that_costs_more_must_be_accepted_more_often() -> None:
    found = [observed(1, row_us).worth(8).probability_min for row_us in (1, 60, 150, 10_000)]
    assert found == sorted(found)


def test_what_a_draft_costs_is_never_taken_for_nothing_because_it_comes_with_requests() -> None:
    cost = StepCost()
    for step in range(400):
        requests = 4 + step % 9
        # As many drafts for each request in every step: the two kinds of rows cannot be told apart.
        cost.observe(requests, 3 * requests, 2 * requests, 3000 + 400 * requests)
    # Of 8 to 12 requests, which count as one size of batch.
    assert cost.worth(8).probability_min == pytest.approx(100 * 2 * 10 / (3000 + 400 * 10), rel=0.02)


def test_a_step_in_which_the_machine_did_something_else_is_left_out() -> None:
    cost = observed(3, 50.0)
    before = cost.worth(24).probability_min
    for _ in range(16):
        cost.observe(24, 100, 24, 1e6)
    assert cost.worth(24).probability_min == before


def with_plain(part: float) -> StepCost:
    """Rows of 50 us; a step without drafts takes that part of what its rows say."""
    cost = observed(1, 50.0)
    for _ in range(40):
        cost.observe(24, 0, 24, part * (BASE_US + 50 * 24))
    return cost


def test_a_step_with_drafts_pays_for_the_longer_way_that_it_is_sampled() -> None:
    line = BASE_US + 50 * 24
    worth = with_plain(0.8).worth(24)
    # Plain steps are the fastest that there is, since no draft was accepted.
    speed = 24 / (0.8 * line)
    assert worth.row == pytest.approx(50 * speed, rel=0.1)
    assert worth.step == pytest.approx(0.2 * line * speed, rel=0.1)
    # One that is as dear in both ways owes nothing, nor does one that takes longer without drafts.
    assert with_plain(1.0).worth(24).step == pytest.approx(0.0, abs=0.3)
    assert with_plain(1.2).worth(24).step == 0.0


def test_a_draft_tokens_row_costs_no_more_than_all_that_comes_with_drafts() -> None:
    cost = StepCost()
    for step in range(800):
        # A request's row is four times as dear as a draft token's, which the line takes for one price.
        requests = 16 + step % 13
        drafted = requests + step % 2
        cost.observe(requests, drafted, 2 * requests, BASE_US + 400 * requests + 100 * drafted)
        cost.observe(requests, 0, requests, BASE_US + 400 * requests)
    assert cost._slope_us() > 150
    worth = cost.worth(20)
    assert worth.row == pytest.approx(100 * cost._with_drafts[5].speed(), rel=0.05)
    assert worth.step == pytest.approx(0.0, abs=0.1)


def test_drafts_that_do_not_pay_together_are_withheld() -> None:
    cost = with_plain(0.8)
    worth = cost.worth(24)
    needed = worth.step + 10 * worth.row
    kept = [(cost.keeps(10, 0.9 * needed), cost.keeps(10, 1.1 * needed)) for _ in range(10)]
    assert kept == [(False, True)] * 10


def test_what_a_step_owes_is_of_batches_of_its_size() -> None:
    cost = with_plain(0.8)
    # In a batch of two, drafts owe nothing.
    for _ in range(40):
        cost.observe(2, 4, 3, BASE_US + 50 * 6)
        cost.observe(2, 0, 2, BASE_US + 50 * 2)
    assert cost.worth(2).step == pytest.approx(0.0, abs=0.05)
    assert cost.worth(24).step > 1


def test_both_ways_are_tried_now_and_then() -> None:
    cost = with_plain(0.8)
    cost.worth(24)
    always = [cost.keeps(10, 100.0) for _ in range(640)]
    assert 5 <= always.count(False) <= 15
    # To draft for nothing costs less than not to draft where it pays.
    never = [cost.keeps(10, 0.0) for _ in range(640)]
    assert 35 <= never.count(True) <= 45
    # Until enough steps without drafts were seen, more of them are made.
    fresh = StepCost()
    assert [fresh.keeps(10, 100.0) for _ in range(80)].count(False) == 10
