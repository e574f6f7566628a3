"""How many draft tokens a step has: on step times that were recorded, and on what a server does otherwise."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from foretoken_vllm import engine
from foretoken_vllm.faults import Faults
from foretoken_vllm.length import LengthBudget, StepTimes, best_option
from recorded import ACCEPTANCES, ENGINES, LENGTHS, REQUESTS, run, worst

UP = (0, 1, 3, 7)
ALONE = [(length, 0) for length in UP]


@pytest.mark.parametrize("requests", REQUESTS)
@pytest.mark.parametrize("acceptance", ACCEPTANCES)
@pytest.mark.parametrize("engine_name", ENGINES)
def test_after_200_steps_it_is_within_3_percent_of_the_best_fixed_length(
    engine_name: str, acceptance: str, requests: int
) -> None:
    found = worst(ENGINES[engine_name], ACCEPTANCES[acceptance], requests)
    assert found.ratio >= 0.97
    assert found.explored < 0.01
    assert set(found.lengths) <= set(LENGTHS)


@pytest.mark.parametrize(("requests", "length"), [(1, 7), (8, 7), (32, 7), (256, 1)])
def test_it_starts_with_the_longest_whose_rows_are_free(requests: int, length: int) -> None:
    budget = LengthBudget(UP, Faults())
    chosen = []
    for _ in range(63):
        chosen.append(budget.choose(requests, requests))
        assert budget._steps >= budget._other_until
    assert set(chosen) == {length}


def test_what_is_longest_is_found_by_the_tokens_that_it_makes() -> None:
    survival = {0: [0.9, 0.8, 0.7], 1: [0.95, 0.9, 0.8]}
    times = {(0, 0): 10.0, (1, 0): 11.5, (3, 0): 13.5}
    assert best_option(times, survival.__getitem__, 8, 8) == (3, 0)
    # 8 + 0.9, then 8 + 2.4.
    assert best_option(times, survival.__getitem__, 8, 1) == (0, 0)
    assert best_option({**times, (3, 0): 22.0}, survival.__getitem__, 8, 8) == (1, 0)
    # 8 + 8 * 2.65 in 14.5, and in 14.
    for us, option in ((14.5, (3, 0)), (14.0, (3, 1))):
        assert best_option({**times, (3, 1): us}, survival.__getitem__, 8, 8) == option


@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize("requests", [1, 8, 32, 128])
def test_load_on_the_machine_leads_to_no_other_length(engine_name: str, requests: int) -> None:
    acceptance = ACCEPTANCES["often all"]
    found = run(
        ENGINES[engine_name],
        lambda _step: acceptance,
        lambda _step: requests,
        steps=1500,
        load=lambda step: 2.6 if step // 300 % 2 else 1.0,
    )
    assert found.ratio >= 0.97


@pytest.mark.parametrize("requests", [8, 32, 128])
@pytest.mark.parametrize("engine_name", ["H100", "small GPU"])
def test_drafts_that_begin_to_pay_or_cease_to_are_found(engine_name: str, requests: int) -> None:
    for before, after in (("hardly any", "most"), ("most", "hardly any")):
        found = run(
            ENGINES[engine_name],
            lambda step, before=before, after=after: ACCEPTANCES[before if step < 600 else after],  # type: ignore[misc]
            lambda _step: requests,
            steps=2000,
            first=1100,
        )
        assert found.ratio >= 0.96, after


@pytest.mark.parametrize("engine_name", ENGINES)
def test_a_batch_that_shrinks_is_followed(engine_name: str) -> None:
    acceptance = ACCEPTANCES["often all"]
    found = run(
        ENGINES[engine_name],
        lambda _step: acceptance,
        lambda step: max(1, round(256 * (1 - step / 2000))),
        steps=2000,
        first=0,
    )
    assert found.ratio >= 0.9


def test_a_step_that_compiles_says_nothing_of_its_length() -> None:
    times = StepTimes()
    for us in (70_000.0, 7000.0, 7020.0, 6980.0):
        times.observe(8, 7, us)
    assert times.expected(8, ALONE)[7, 0] == pytest.approx(7000, rel=0.01)
    # Two steps of another length, one of which compiles.
    for us in (8000.0, 80_000.0):
        times.observe(8, 3, us)
    assert times.expected(8, ALONE)[3, 0] == pytest.approx(8000, rel=0.01)


def test_steps_in_which_requests_have_different_lengths_say_nothing() -> None:
    budget = LengthBudget(UP, Faults())
    for drafted in (8 * 7 - 1, 8 * 2):
        budget.observe(8, drafted, 7000)
        budget.observe(8, drafted, 7000)
    assert budget.step_time.expected(8, ALONE) == LengthBudget(UP, Faults()).step_time.expected(8, ALONE)


@pytest.mark.parametrize(("allowed", "length"), [(None, 7), (56, 7), (55, 3), (20, 1), (7, 0), (0, 0)])
def test_what_the_sidecar_allows_is_rounded_down_to_a_length_that_is_open(allowed: int | None, length: int) -> None:
    budget = LengthBudget(UP, Faults())
    budget.allowed = allowed
    assert budget.choose(8, 8) == length


def test_only_the_configured_number_leaves_the_scheduler_the_table_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = SimpleNamespace(max_num_seqs=2)
    scheduler = SimpleNamespace(dynamic_sd_lookup=None, num_spec_tokens=7, scheduler_config=limits)
    monkeypatch.setattr(engine, "scheduler", lambda: scheduler)
    budget = LengthBudget(UP, Faults())
    found = []
    for budget.length in (7, 1, 7):
        budget.apply()
        found.append(scheduler.dynamic_sd_lookup)
    assert found == [None, [1, 1, 1], None]
    # 7 has no graph there.
    short = LengthBudget((0, 1, 3), Faults())
    short.apply()
    assert scheduler.dynamic_sd_lookup == [3, 3, 3]
