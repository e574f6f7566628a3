"""That a step's drafts must pay for the step that verifies them: on step times that are made up, with noise."""

from __future__ import annotations

import random

import pytest

from foretoken_vllm.cost import MARGIN, PROBABILITY_FLOOR, StepCost

# Microseconds: of a step, of each request, of each draft token, of any.
BASE, REQUEST, DRAFT, ANY = 3000.0, 200.0, 10.0, 1200.0


class Engine:
    """Steps of 17 to 31 requests, whose drafts are accepted as often as they are said to be."""

    def __init__(self, seed: int, *, noise: float = 0.05, draft: float = DRAFT, fixed: float = ANY) -> None:
        self.random = random.Random(seed)
        self.cost = StepCost()
        self.noise, self.draft, self.fixed = noise, draft, fixed

    def run(self, steps: int, acceptance: float, *, drafted: int = 100, empty: float = 0.0) -> float:
        """Share of the steps that verified drafts, of those that had any; `empty`: share of those that had not."""
        kept = asked = 0
        for _ in range(steps):
            requests = self.random.randint(17, 31)
            count = 0 if self.random.random() < empty else self.random.randint(drafted // 2, 3 * drafted // 2)
            if count > 0:
                asked += 1
                if not self.cost.is_worth(requests, count, acceptance * count):
                    count = 0
                kept += count > 0
            us = BASE + REQUEST * requests + self.draft * count + (self.fixed if count > 0 else 0.0)
            self.cost.observe(requests, count, us * self.random.gauss(1.0, self.noise))
        return kept / asked


@pytest.mark.parametrize("seed", range(4))
def test_what_each_thing_costs_is_found_in_noisy_steps(seed: int) -> None:
    engine = Engine(seed)
    engine.run(2000, 0.9, empty=0.3)
    assert engine.cost.of(24).per_request_us == pytest.approx(REQUEST, abs=60)
    assert engine.cost.of(24).per_draft_us == pytest.approx(DRAFT, abs=4)
    # Two standard errors are taken off.
    assert ANY - 800 < engine.cost.of(24).per_step_us < ANY + 200


@pytest.mark.parametrize("seed", range(4))
def test_what_any_draft_costs_is_0_while_every_step_has_some_or_none(seed: int) -> None:
    engine = Engine(seed)
    for count in (0, 80):
        for _ in range(500):
            requests = engine.random.randint(17, 31)
            many = engine.random.randint(count // 2, 3 * count // 2)
            engine.cost.observe(requests, many, 9000 + 10 * many)
        if count == 0:
            assert engine.cost.of(24).per_step_us == 0
            engine.cost = StepCost()
    assert engine.cost.of(24).per_step_us == 0
    assert engine.cost.of(24).per_draft_us == pytest.approx(10, abs=1)


@pytest.mark.parametrize("seed", range(4))
def test_a_fixed_cost_that_is_not_there_is_not_found(seed: int) -> None:
    engine = Engine(seed, fixed=0.0)
    engine.run(1000, 0.9, empty=0.3)
    assert engine.cost.of(24).per_step_us < 300
    assert engine.run(300, 0.3, empty=0.3) > 0.9


@pytest.mark.parametrize("seed", range(4))
def test_drafting_stops_where_a_step_with_drafts_does_not_pay_and_begins_again_where_it_does(seed: int) -> None:
    engine = Engine(seed)
    # Of 100 tokens 80 are accepted, each worth 300 us: more than 1.4 times 2,200 us.
    engine.run(600, 0.8)
    assert engine.run(300, 0.8) > 0.9
    # 5 are worth 1,600 us: more than 1.4 times 1,000, less than that with ANY.
    engine.run(600, 0.05)
    share = engine.run(640, 0.05)
    assert 0 < share < 0.1
    engine.run(100, 0.8)
    assert engine.run(300, 0.8) > 0.9


def test_a_cost_that_is_gone_is_noticed_because_some_steps_draft_all_the_same() -> None:
    engine = Engine(1)
    engine.run(600, 0.9, empty=0.3)
    # 6.5 tokens of 100 are worth 2,100 us: more than 1.4 times 1,000, less than that with ANY.
    assert engine.run(300, 0.065) < 0.2
    engine.fixed = 0.0
    engine.run(1500, 0.065)
    assert engine.run(300, 0.065) > 0.9


def test_until_there_is_something_to_learn_from_everything_is_tried() -> None:
    cost = StepCost()
    assert cost.is_worth(32, 100, 0.0)
    assert cost.probability_min(32) == PROBABILITY_FLOOR


def test_a_token_is_worth_its_row_as_before() -> None:
    engine = Engine(7, noise=0.01, fixed=0.0, draft=50.0)
    engine.run(1000, 0.9, empty=0.3)
    plain = BASE + 24 * REQUEST
    assert engine.cost.probability_min(24) == pytest.approx(MARGIN * 50 * 24 / plain, rel=0.15)


def test_a_step_in_which_the_machine_did_something_else_is_left_out() -> None:
    engine = Engine(3)
    # A multiple of how many are looked at together.
    engine.run(608, 0.9, empty=0.3)
    before = engine.cost.of(24).per_request_us
    for _ in range(16):
        engine.cost.observe(24, 100, 1e6)
    assert engine.cost.of(24).per_request_us == before


def test_small_batches_say_nothing_of_what_drafts_cost_large_ones() -> None:
    engine = Engine(5)
    for step in range(3000):
        requests = (32, 32, 32, 8, 1)[step % 5]
        count = engine.random.randint(0, 3 * requests)
        # Steps of few requests are shorter than a straight line through the large ones says.
        us = 3000 + 2000 * requests**0.5 + 10 * count
        engine.cost.observe(requests, count, us * engine.random.gauss(1.0, 0.05))
    assert engine.cost.of(32).per_draft_us == pytest.approx(10, abs=3)


def test_a_busy_machine_makes_drafts_no_dearer() -> None:
    engine = Engine(6)
    for _ in range(3000):
        count = engine.random.randint(0, 100)
        busy = 3.0 if engine.random.random() < 0.1 else 1.0
        engine.cost.observe(32, count, (12_000 + 10 * count) * busy * engine.random.gauss(1.0, 0.05))
    assert engine.cost.of(32).per_draft_us < 20
