"""Under which of vLLM's runners, and for which models, the plugin drafts. On a stand-in of vLLM's platform."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from foretoken_vllm import runner_v2, settings
from foretoken_vllm.graphs import ladder
from foretoken_vllm.proposer import ForetokenProposer
from harness import config


class Vllm:
    """What is asked of the installed one."""

    is_cpu = True
    version = "0.32.0+cpu"
    has_triton = False


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Vllm:
    made = Vllm()
    package, platforms, triton = (ModuleType(name) for name in ("vllm", "vllm.platforms", "vllm.triton_utils"))
    platforms.__dict__["current_platform"] = SimpleNamespace(is_cpu=lambda: made.is_cpu)
    triton.__getattr__ = lambda _: made.has_triton  # type: ignore[method-assign]
    for module in (package, platforms, triton):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for owner in (settings, runner_v2):
        monkeypatch.setattr(owner, "vllm_version", lambda: made.version)
    monkeypatch.setattr(runner_v2, "unknown_here", list)
    return made


@pytest.mark.parametrize(
    ("is_cpu", "version", "has_triton", "environment", "runner", "reason"),
    [
        (False, "0.33.0", True, {}, 2, "has Triton here"),
        (True, "0.32.0+cpu", True, {}, 2, "has Triton here"),
        (True, "0.32.0+cpu", False, {}, 1, "it has no Triton here"),
        (True, "0.33.1+cpu", True, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, 1, "VLLM_USE_V2_MODEL_RUNNER=0"),
        (True, "0.34.0+cpu", False, {}, 0, "the first runner is not known from vLLM 0.34 on"),
        (True, "1.0", False, {}, 0, "the first runner is not known from vLLM 0.34 on"),
        (False, "0.32.0", False, {}, 0, "on GPUs the plugin drafts under the second runner alone"),
        (False, "0.32.0", True, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, 0, "VLLM_USE_V2_MODEL_RUNNER=0; on GPUs"),
    ],
)
def test_the_first_runner_is_for_cpus_and_for_releases_that_are_known(
    vllm: Vllm, is_cpu: bool, version: str, has_triton: bool, environment: dict[str, str], runner: int, reason: str
) -> None:
    vllm.is_cpu, vllm.version, vllm.has_triton = is_cpu, version, has_triton
    chosen, why = runner_v2.choose(environment)
    assert chosen == runner and reason in why


@pytest.mark.parametrize(
    ("is_cpu", "version", "recurrent", "drafts"),
    [
        (True, "0.32.0+cpu", None, True),
        (True, "0.32.0+cpu", "is_hybrid", True),
        (True, "0.31.2+cpu", "is_hybrid", False),
        (True, "0.31.2+cpu", "has_inner_state", False),
        (True, "0.31.2+cpu", None, True),
        (True, "0.34.0+cpu", None, False),
        (False, "0.32.0", None, False),
    ],
)
def test_what_drafts_would_corrupt_or_slow_gets_none_and_the_log_says_why(
    vllm: Vllm, is_cpu: bool, version: str, recurrent: str | None, drafts: bool
) -> None:
    vllm.is_cpu, vllm.version = is_cpu, version
    given = config()
    if recurrent is not None:
        setattr(given.model_config, recurrent, True)
    made = ForetokenProposer(given)
    assert made._may_draft is drafts and made._is_lossless
    assert list(made.faults.counts) == ([] if drafts else ["no drafts"])
    # Without drafts vLLM's own generators repeat a seed.
    assert made.telemetry()["repeats_seeds"] is not drafts


def test_a_seed_repeats_where_drafts_are_drawn_by_it_or_there_are_none(vllm: Vllm) -> None:
    for own, repeats in (({}, False), ({"exact": 1}, True), ({"drafts": 0}, True)):
        given = config()
        given.additional_config = {"foretoken": own}
        made = ForetokenProposer(given)
        assert made.telemetry()["repeats_seeds"] is repeats
    # The keyed noise could not be installed.
    made.faults.add("exact")
    made._may_draft = True
    assert made.telemetry()["repeats_seeds"] is False


def test_lengths_of_a_ladder_have_rows_that_divide_each_other() -> None:
    assert [ladder(longest) for longest in (1, 7, 8, 15)] == [
        (0, 1),
        (0, 1, 3, 7),
        (0, 1, 3, 7, 8),
        (0, 1, 3, 7, 15),
    ]


HEAD = SimpleNamespace(method="eagle3", model="/head", draft_sample_method="greedy")


@pytest.mark.parametrize(
    ("beside", "speculation", "more", "problem"),
    [
        (0, {}, {}, None),
        (1, {}, {}, ""),
        (1, {"method": "draft_model"}, {}, ""),
        (1, {"method": "mtp"}, {}, ""),
        (1, {"method": "ngram_gpu"}, {}, "method ngram_gpu has no head"),
        (1, {"draft_sample_method": "probabilistic"}, {}, "its drafts are drawn from a distribution"),
        (1, {}, {"watermark_config": {}}, "its drafts are drawn from a distribution"),
        (1, {}, {"parallel_config": SimpleNamespace(tensor_parallel_size=2)}, "--tensor-parallel-size"),
    ],
)
def test_nothing_stands_beside_a_head_that_was_not_meant_or_whose_drafts_are_drawn(
    beside: int, speculation: dict[str, Any], more: dict[str, Any], problem: str | None
) -> None:
    given = SimpleNamespace(
        additional_config={"foretoken": {"beside": beside}},
        speculative_config=SimpleNamespace(**{**vars(HEAD), **speculation}),
        **{"parallel_config": SimpleNamespace(tensor_parallel_size=1), **more},
    )
    found = runner_v2.beside_problem(given)
    assert found == problem or (problem and problem in str(found))
    # Where it stands, the scheduler's table of lengths is its own.
    assert runner_v2.has_tables(given) is (problem == "")


def test_it_is_asked_for_by_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    one_rank = SimpleNamespace(tensor_parallel_size=1)
    given = SimpleNamespace(additional_config=None, speculative_config=HEAD, parallel_config=one_rank)
    assert runner_v2.beside_problem(given) is None
    monkeypatch.setenv("FORETOKEN_BESIDE", "1")
    assert runner_v2.beside_problem(given) == "" and settings.is_wanted()
