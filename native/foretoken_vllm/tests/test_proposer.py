"""What the proposer hands to vLLM, and that nothing which goes wrong gets out of it."""

from __future__ import annotations

import time
from array import array
from typing import Any

import numpy as np
import pytest

from foretoken_vllm.batch_plan import BatchPlan
from foretoken_vllm.core import CoreTrapError
from foretoken_vllm.mailbox import Budget
from foretoken_vllm.proposer import TRAPS_MAX, ForetokenProposer
from harness import VOCABULARY, Chunk, Runner, config, engine, extra, ruin

PROMPT = [1, 2, 3]
STORY = [10, 11, 12, 13, 14, 15, 16]


def run_siblings(runner: Runner, count: int = 4, group: str = "g") -> None:
    """Responses of one group that tell the same story, to the end."""
    for sample in range(count):
        name = f"{group}-{sample}"
        runner.add(Chunk(name, list(PROMPT), extra(group, sample)))
        for token in STORY:
            runner.step({name: [token]})
        runner.finish(name)


def test_a_response_drafts_from_its_siblings() -> None:
    _proposer, runner = engine()
    run_siblings(runner)
    runner.add(Chunk("r", list(PROMPT), extra("g", 9)))
    assert runner.step({"r": [10, 11]})["r"] == STORY[2:]


def test_groups_do_not_draft_from_each_other() -> None:
    _proposer, runner = engine()
    run_siblings(runner)
    runner.add(Chunk("r", list(PROMPT), extra("other", 0)))
    assert runner.step({"r": [10, 11]})["r"] == []


def test_drafts_follow_the_request_and_not_the_row() -> None:
    _proposer, runner = engine()
    run_siblings(runner)
    runner.add(Chunk("a", list(PROMPT), extra("x", 0)))
    runner.add(Chunk("b", list(PROMPT), extra("g", 9)))
    assert runner.step({"a": [10, 11], "b": [10, 11]}) == {"a": [], "b": STORY[2:]}
    runner.finish("a")
    assert runner.step({"b": [12]})["b"] == STORY[3:]


def test_drafts_stay_within_num_speculative_tokens() -> None:
    _proposer, runner = engine(tokens=2)
    run_siblings(runner)
    runner.add(Chunk("r", list(PROMPT), extra("g", 9)))
    assert runner.step({"r": [10, 11]})["r"] == STORY[2:4]


def test_drafts_stay_within_max_model_len() -> None:
    proposer = ForetokenProposer(config(8, length_max=8, probability_min=0.01))
    runner = Runner(proposer)
    runner.load_model()
    for sample in range(4):
        runner.add(Chunk(f"s{sample}", list(PROMPT), extra("g", sample)))
        runner.step({f"s{sample}": STORY[:5]})
        runner.finish(f"s{sample}")
    runner.add(Chunk("r", list(PROMPT), extra("g", 9)))
    assert runner.step({"r": [10, 11]})["r"] == STORY[2:4]
    assert runner.step({"r": [12]})["r"] == STORY[3:4]
    assert runner.step({"r": [13]})["r"] == []


def test_drafts_stay_within_the_chunk() -> None:
    _proposer, runner = engine()
    run_siblings(runner)
    runner.add(Chunk("r", list(PROMPT), extra("g", 9), max_tokens=4))
    assert runner.step({"r": [10, 11]})["r"] == [12]


def test_a_chunk_that_goes_on_elsewhere_brings_its_output_along() -> None:
    _proposer, runner = engine()
    run_siblings(runner, count=3)
    runner.add(Chunk("moved", PROMPT + STORY[:3], extra("g", 5, offset=3)))
    assert runner.step({"moved": [13]})["moved"] == STORY[4:]
    runner.add(Chunk("first", list(PROMPT), extra("g", 6)))
    assert runner.step({"first": [10]})["first"] == STORY[1:]


def test_a_later_turn_of_a_session_drafts_from_the_group_of_its_first() -> None:
    _proposer, runner = engine()
    run_siblings(runner, count=3)
    turns, news = [20, 21, 22, 23], [30, 31]
    about = extra("g", 5, offset=len(news), foretoken_prompt=len(PROMPT))
    runner.add(Chunk("turn", PROMPT + turns + news, about))
    assert runner.step({"turn": [10, 11]})["turn"] == STORY[2:]
    # What is new in its prompt, and what it generates, siblings draft from as well.
    runner.step({"turn": [40, 41, 42]})
    runner.add(Chunk("sibling", list(PROMPT), extra("g", 6)))
    assert runner.step({"sibling": [30]})["sibling"][:2] == [31, 10]


def test_steps_that_proposed_nothing_leave_no_hole() -> None:
    _proposer, runner = engine()
    for sample in range(3):
        name = f"s{sample}"
        runner.add(Chunk(name, list(PROMPT), extra("g", sample)))
        runner.step({name: STORY[:1]})
        runner.step({name: STORY[1:4]}, propose=False)
        runner.step({name: STORY[4:]})
    runner.add(Chunk("r", list(PROMPT), extra("g", 9)))
    assert runner.step({"r": [10, 11]})["r"] == STORY[2:]


def test_rows_in_prefill_get_no_drafts() -> None:
    _proposer, runner = engine()
    run_siblings(runner)
    runner.add(Chunk("r", list(PROMPT), extra("g", 9)))
    assert runner.step({})["r"] == []


def test_requests_that_want_no_drafts_are_left_alone() -> None:
    _proposer, runner = engine()
    for sample in range(4):
        name = f"s{sample}"
        runner.add(Chunk(name, list(PROMPT), extra("g", sample, foretoken_draft=0)))
        assert runner.step({name: STORY})[name] == []
    runner.add(Chunk("r", list(PROMPT), extra("g", 9)))
    assert runner.step({"r": [10, 11]})["r"] == []


def test_an_epoch_that_begins_in_the_middle_of_a_batch_spoils_no_record_of_the_step() -> None:
    proposer, runner = engine()
    run_siblings(runner)
    for name in ("a", "b"):
        runner.add(Chunk(name, list(PROMPT), extra("g", 9)))
        runner.step({name: [10]})
    runner.add(Chunk("new", list(PROMPT), extra("g", 8, foretoken_epoch=1)))
    assert runner.step({"a": [11], "b": [11], "new": [10, 11]}) == {"a": [], "b": [], "new": []}
    for sample in range(4):
        name = f"s{sample}"
        runner.add(Chunk(name, list(PROMPT), extra("g", sample, foretoken_epoch=1)))
        runner.step({name: STORY})
        runner.finish(name)
    assert runner.step({"new": [12]})["new"] == STORY[3:]
    assert proposer.faults.counts == {}


def test_another_run_begins_anew_and_at_whatever_epoch_it_is() -> None:
    proposer, runner = engine()
    for sample in range(4):
        name = f"s{sample}"
        runner.add(Chunk(name, list(PROMPT), extra("g", sample, foretoken_run="one", foretoken_epoch=3)))
        runner.step({name: STORY})
        runner.finish(name)
    runner.add(Chunk("r", list(PROMPT), extra("g", 9, foretoken_run="two", foretoken_epoch=0)))
    assert runner.step({"r": [10, 11]})["r"] == []
    assert proposer.stats()["epoch"] == 0
    runner.add(Chunk("late", list(PROMPT), extra("g", 7, foretoken_run="two", foretoken_epoch=0)))
    runner.step({"r": [12]})
    assert runner.step({"late": [10]})["late"] == [11, 12]


def test_the_first_epoch_that_a_request_names_counts_whatever_was_reloaded_before() -> None:
    proposer, runner = engine()
    for _ in range(2):
        runner.reload_weights(weights_path="x")
    runner.add(Chunk("r", list(PROMPT), extra("g", 9, foretoken_run="one", foretoken_epoch=1)))
    runner.step({"r": [10]})
    assert proposer.stats()["epoch"] == 1
    assert proposer.stats()["groups"] == 1


def test_a_budget_of_none_means_no_drafts_until_it_is_over() -> None:
    proposer, runner = engine()
    run_siblings(runner)
    runner.add(Chunk("r", list(PROMPT), extra("g", 9)))
    proposer._mailbox.budget = Budget(0, time.monotonic() + 60)
    assert runner.step({"r": [10, 11]})["r"] == []
    assert proposer.stats()["over_budget"] == 1
    proposer._mailbox.budget = Budget(0, time.monotonic() - 1)
    assert runner.step({"r": [12]})["r"] == STORY[3:]


def test_a_budget_is_shared_by_all_requests_of_a_step() -> None:
    proposer, runner = engine()
    run_siblings(runner)
    names = ["r0", "r1", "r2"]
    for i, name in enumerate(names):
        runner.add(Chunk(name, list(PROMPT), extra("g", 20 + i)))
    proposer._mailbox.budget = Budget(4, time.monotonic() + 60)
    drafts = runner.step({name: [10] for name in names})
    assert sum(map(len, drafts.values())) == 4


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"foretoken_group": ""},
        {"foretoken_group": 7},
        {"foretoken_group": "x" * 86},
        extra("g", -1),
        extra("g", 4096),
        extra("g", 0, offset=3),
        extra("g", 0, offset=-1),
        extra("g", 0, foretoken_prompt=0),
        extra("g", 0, foretoken_prompt=99),
        extra("g", "zero"),  # type: ignore[arg-type]
    ],
)
def test_requests_that_are_not_understood_get_no_drafts_and_harm_no_others(bad: dict[str, Any]) -> None:
    _proposer, runner = engine()
    run_siblings(runner)
    runner.add(Chunk("bad", list(PROMPT), bad))
    runner.step({"bad": [10]})
    runner.add(Chunk("r", list(PROMPT), extra("g", 9)))
    found = runner.step({"bad": [11], "r": [10, 11]})
    assert found["bad"] == []
    again = runner.step({"bad": [12], "r": [12]})
    assert again["r"] == STORY[3:]


def test_a_group_that_runs_with_another_prompt_is_left_alone() -> None:
    proposer, runner = engine()
    run_siblings(runner)
    runner.add(Chunk("r", [9, 9, 9], extra("g", 9)))
    assert runner.step({"r": [10, 11]})["r"] == []
    assert proposer.faults.counts == {"conflict": 1}


def test_a_newer_weight_epoch_forgets_the_old_one() -> None:
    proposer, runner = engine()
    run_siblings(runner)
    runner.add(Chunk("r", list(PROMPT), extra("g", 9, foretoken_epoch=1)))
    assert runner.step({"r": [10, 11]})["r"] == []
    runner.add(Chunk("late", list(PROMPT), extra("g", 8, foretoken_epoch=0)))
    assert runner.step({"late": [10, 11]})["late"] == []
    assert proposer.stats()["epoch"] == 1


def test_reloaded_weights_begin_an_epoch_where_requests_name_none() -> None:
    proposer, runner = engine()
    run_siblings(runner)
    runner.reload_weights(weights_path="x")
    runner.add(Chunk("r", list(PROMPT), extra("g", 9)))
    assert runner.step({"r": [10, 11]})["r"] == []
    assert (runner.reloads, proposer.stats()["epoch"]) == (1, 1)


def test_an_exception_inside_ends_in_no_drafts_and_the_next_step_drafts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer, runner = engine()
    run_siblings(runner)
    runner.add(Chunk("r", list(PROMPT), extra("g", 9)))
    replica = proposer._replica
    assert replica is not None
    with monkeypatch.context() as patch:

        def fail(*_arguments: object) -> None:
            raise RuntimeError("boom")

        patch.setattr(replica._core, "step", fail)
        assert runner.step({"r": [10, 11]})["r"] == []
    run_siblings(runner)
    assert runner.step({"r": [12]})["r"] == STORY[3:]
    assert proposer.faults.counts["propose"] == 1


def test_a_core_that_traps_is_replaced_and_in_the_end_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer, runner = engine()
    replica = proposer._replica
    assert replica is not None

    def trap(*_arguments: object) -> None:
        raise CoreTrapError("unreachable")

    for round_ in range(TRAPS_MAX):
        runner.add(Chunk(f"r{round_}", list(PROMPT), extra(f"g{round_}", 0)))
        runner.step({f"r{round_}": [10]})
        monkeypatch.setattr(replica._core, "step", trap)
        assert all(drafts == [] for drafts in runner.step({f"r{round_}": [10]}).values())
        if round_ == 0:
            run_siblings(runner, group="again")
            runner.add(Chunk("s", list(PROMPT), extra("again", 9)))
            assert runner.step({"s": [10, 11]})["s"] == STORY[2:]
    assert proposer.stats()["is_on"] is False
    assert proposer.stats()["traps"] == TRAPS_MAX
    assert proposer._replica is None
    assert set(map(tuple, runner.step({"s": [12]}).values())) == {()}


@pytest.mark.parametrize("is_reload", [False, True])
def test_a_core_whose_memory_is_ruined_traps_and_the_engine_goes_on(is_reload: bool) -> None:
    proposer, runner = engine()
    replica = proposer._replica
    assert replica is not None
    for round_ in range(TRAPS_MAX - 1):
        group = f"g{round_}"
        run_siblings(runner, group=group)
        name = f"r{round_}"
        runner.add(Chunk(name, list(PROMPT), extra(group, 9)))
        assert runner.step({name: [10, 11]})[name] == STORY[2:]
        before = replica._core
        epoch = proposer._mailbox.era[1]
        ruin(before)
        if is_reload:
            # The core is called for each group that goes.
            with pytest.raises(CoreTrapError):
                before.step([1, 0, 1, 10], 1, array("i"), 0)
            runner.reload_weights()
            assert proposer._mailbox.era[1] == epoch + 1
        else:
            assert runner.step({name: [12]})[name] == []
        assert proposer.stats()["traps"] == round_ + 1
        assert replica._core is not before
        assert proposer.stats()["groups"] == 0
        runner.finish(name)
    run_siblings(runner, group="last")
    runner.add(Chunk("last", list(PROMPT), extra("last", 9)))
    assert runner.step({"last": [10, 11]})["last"] == STORY[2:]


def test_a_core_without_room_drafts_nothing_for_what_does_not_fit() -> None:
    proposer, runner = engine(core_mb=8)
    random = np.random.default_rng(42)
    for sample in range(12):
        name = f"s{sample}"
        runner.add(Chunk(name, list(PROMPT), extra("g", sample)))
        for _ in range(300):
            for i, chunk in enumerate(runner.chunks):
                # Texts that never repeat: each makes its whole index anew.
                assert i == 0 and chunk.request_id == name
            runner.step({name: [int(random.integers(VOCABULARY))]})
        runner.finish(name)
    for sample in range(4000):
        group = f"many{sample % 1000}"
        name = f"m{sample}"
        runner.add(Chunk(name, list(PROMPT), extra(group, sample % 4)))
        runner.step({name: random.integers(VOCABULARY, size=400).tolist()})
        runner.finish(name)
    stats = proposer.stats()
    assert stats["is_on"] and stats["traps"] == 0 and "propose" not in stats["faults"]
    assert "core full" in stats["faults"]


def test_no_runner_and_no_core_mean_no_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    unbound = ForetokenProposer(config())
    lengths, ids = np.ones(2, np.int32), np.ones((2, 8), np.int32)
    assert unbound.propose([[1], [2]], lengths, ids) == [[], []]
    monkeypatch.setenv("FORETOKEN_CORE", "/nowhere/core.wasm")
    proposer, runner = engine()
    runner.add(Chunk("r", list(PROMPT), extra("g", 9)))
    assert runner.step({"r": [10]})["r"] == []
    assert "start" in proposer.faults.counts


def test_a_vllm_config_of_another_shape_does_not_keep_vllm_from_starting() -> None:
    proposer = ForetokenProposer(object())
    proposer.load_model()
    assert proposer.propose([[1]], None, None) == [[]]


def test_token_ids_that_cannot_be_are_not_drafted() -> None:
    proposer, runner = engine()
    runner.add(Chunk("r", list(PROMPT), extra("g", 0)))
    assert runner.step({"r": [-1]})["r"] == []
    assert runner.step({"r": [5]})["r"] == []
    assert proposer.stats()["is_on"]


def test_groups_beyond_their_number_drop_the_one_used_longest_ago() -> None:
    proposer, runner = engine(groups_max=2)
    for group in ("a", "b", "c"):
        run_siblings(runner, group=group)
    assert proposer.stats()["groups"] == 2
    runner.add(Chunk("r", list(PROMPT), extra("c", 9)))
    assert runner.step({"r": [10, 11]})["r"] == STORY[2:]


def test_an_error_while_an_error_is_handled_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch's own state raises, and so does what brings the requests up to date after that."""
    proposer, runner = engine()
    run_siblings(runner)
    runner.add(Chunk("r", list(PROMPT), extra("g", 9)))
    for token in STORY[:3]:
        runner.step({"r": [token]})
    assert proposer._plan is not None

    def broken(*_arguments: Any, **_options: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(BatchPlan, "follows", broken)
    monkeypatch.setattr(BatchPlan, "settle", broken)
    assert runner.step({"r": [STORY[3]]}) == {"r": []}
    monkeypatch.undo()
    assert proposer.faults.counts == {"propose": 1, "recover": 1}
    # The next steps know the request again.
    runner.step({"r": [STORY[4]]})
    assert runner.step({"r": [STORY[5]]})["r"] == STORY[6:]
    assert proposer.faults.counts == {"propose": 1, "recover": 1}


def test_an_error_in_the_counters_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer, runner = engine()
    run_siblings(runner)

    def broken(*_arguments: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(proposer._budget, "learn", broken)
    runner.add(Chunk("r", list(PROMPT), extra("g", 9)))
    for token in STORY:
        runner.step({"r": [token]})
    assert set(proposer.faults.counts) == {"finish"}
    monkeypatch.undo()
    runner.finish("r")
    runner.add(Chunk("s", list(PROMPT), extra("g", 10)))
    runner.step({"s": [10]})
    assert runner.step({"s": [11]})["s"] == STORY[2:]


@pytest.mark.parametrize("settings", [{}, {"draft_url": "ws://127.0.0.1:9/v1/draft"}])
def test_a_batch_only_shrinks_where_no_sidecar_may_send_more(settings: dict[str, Any]) -> None:
    proposer, runner = engine(probability_min=0, **settings)
    try:
        seen: list[float | None] = []
        choose = proposer._budget.choose

        def spy(requests: int, probabilities: list[float], whole: float | None = None) -> float:
            seen.append(whole)
            return choose(requests, probabilities, whole)

        proposer._budget.choose = spy  # type: ignore[method-assign]
        run_siblings(runner)
        runner.add(Chunk("r", list(PROMPT), extra("g", 9)))
        for _ in range(60):
            for token in STORY:
                runner.step({"r": [token]})
        assert seen
        assert seen[0] is None
        assert (seen[-1] is None) == bool(settings)
    finally:
        proposer.close()
