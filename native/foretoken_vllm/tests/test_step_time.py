"""What steps take is learnt from them, whatever else the machine does."""

from __future__ import annotations

import random

import pytest

from foretoken_vllm.step_time import StepTime
from synthetic import ENGINES, LOADS

LEARN_STEPS = 16


def observed(engine: str, load: str, seed: int) -> StepTime:
    """Batches of 20 to 40 requests; one step in 20 has no drafts."""
    chance, model, at = random.Random(seed), StepTime(), 0.0
    for step in range(1200):
        requests = 30 + round(10 * random.Random(step // 50).uniform(-1, 1))
        drafted = 0 if step % 20 == 0 else chance.randint(1, 3 * requests)
        us = ENGINES[engine](requests, drafted) * LOADS[load](chance, at) * chance.gauss(1, 0.03)
        at += us / 1e6
        model.observe(requests, drafted, us)
        if step % LEARN_STEPS == 0:
            model.learn()
    return model


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("engine", ["bundled", "priced", "dear"])
def test_what_drafts_add_to_a_step_is_known_to_a_few_percent(engine: str, load: str, seed: int) -> None:
    model, time = observed(engine, load, seed), ENGINES[engine]
    for drafted in (1, 10, 60):
        ratio = model.us(30, drafted) / model.us(30, 0)
        assert ratio == pytest.approx(time(30, drafted) / time(30, 0), rel=0.06)


def test_on_a_calm_machine_the_error_is_that_of_the_steps_themselves() -> None:
    model = observed("bundled", "calm", 1)
    assert model.us(30, 20) == pytest.approx(ENGINES["bundled"](30, 20), rel=0.05)
    assert 0.01 < model.error < 0.05
    # Where a step in three takes 2.6 times as long, that is not expected.
    assert observed("bundled", "outliers", 1).error < 0.3


def test_a_row_that_costs_nothing_is_not_below_zero() -> None:
    model, chance = StepTime(), random.Random(2)
    for step in range(600):
        drafted = chance.randint(0, 30)
        # Noise alone, by which larger steps even seem faster.
        model.observe(8, drafted, 1000 * chance.gauss(1, 0.05) - drafted)
        if step % LEARN_STEPS == 0:
            model.learn()
    assert model.row >= 0 and model.drafts >= 0
    assert model.us(8, 30) == pytest.approx(model.us(8, 0), rel=0.03)


def test_a_row_is_a_row_where_steps_do_not_tell_them_apart() -> None:
    model = StepTime()
    for step in range(600):
        requests = 4 + step % 9
        # As many drafts for each request in every step.
        model.observe(
            requests, 0 if step % 10 == 0 else 3 * requests, 3000 + 100 * requests * (1 if step % 10 == 0 else 4)
        )
        if step % LEARN_STEPS == 0:
            model.learn()
    assert model.us(8, 24) / model.us(8, 0) == pytest.approx(6200 / 3800, rel=0.05)


def test_nothing_is_known_before_both_kinds_were_seen() -> None:
    model = StepTime()
    for _ in range(100):
        model.observe(4, 0, 1000)
        model.learn()
    assert not model.is_known and model.plain_seen(5) > 50 and model.plain_seen(32) == 0
