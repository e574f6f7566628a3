"""On stand-ins of vLLM's scheduler and platform: vLLM is not installed here."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from foretoken_vllm import padding, settings
from foretoken_vllm.faults import Faults


def scheduler(**fields: Any) -> Any:
    return SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=3), **fields)


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(is_cpu=lambda: True)
    for name in ("vllm", "vllm.platforms"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm.platforms"].__dict__["current_platform"] = found
    return found


@pytest.mark.usefixtures("platform")
def test_on_a_cpu_every_size_of_batch_gets_the_same_number_of_drafts() -> None:
    faults, made = Faults(), scheduler(num_spec_tokens=16, dynamic_sd_lookup=None)
    assert padding.fit(made, faults) and not padding.fit(made, faults)
    assert made.dynamic_sd_lookup == [16, 16, 16, 16]
    assert faults.counts == {}


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize(("tokens", "table"), [(0, None), (16, [0, 8, 4, 2])])
def test_what_the_user_has_configured_stays(tokens: int, table: list[int] | None) -> None:
    made = scheduler(num_spec_tokens=tokens, dynamic_sd_lookup=table)
    assert not padding.fit(made, Faults())
    assert made.dynamic_sd_lookup == table


@pytest.mark.parametrize(
    ("model", "table", "fitted"),
    [
        (settings.SPECULATOR, [0, 7, 0, 7], None),
        (settings.SPECULATOR, None, None),
        ("eagle", [0, 3, 3, 1], [0, 3, 3, 1]),
    ],
)
def test_on_a_gpu_the_table_that_names_lengths_for_graphs_is_taken_away(
    platform: SimpleNamespace, model: str, table: list[int] | None, fitted: list[int] | None
) -> None:
    platform.is_cpu = lambda: False
    config = SimpleNamespace(speculative_config=SimpleNamespace(model=model))
    made = scheduler(num_spec_tokens=7, dynamic_sd_lookup=table, vllm_config=config)
    assert padding.fit(made, Faults()) == (table != fitted)
    assert made.dynamic_sd_lookup == fitted


@pytest.mark.usefixtures("platform")
def test_a_scheduler_of_another_shape_stays_as_it_is() -> None:
    faults = Faults()
    assert not padding.fit(scheduler(), faults)
    assert faults.counts == {"padding": 1}
