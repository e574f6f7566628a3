"""What the package does to vLLM's classes, and what it makes of settings: nothing that could keep vLLM from running."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from foretoken_vllm import engine, plugin, repair, settings
from foretoken_vllm.faults import KINDS_MAX, Faults


class Drafter:
    def __init__(self) -> None:
        self.runner: Any = None

    def bind_runner(self, runner: Any) -> None:
        self.runner = runner


def test_the_drafter_learns_of_its_runner_once_the_model_is_loaded() -> None:
    class Runner:
        def __init__(self) -> None:
            self.drafter = Drafter()

        def load_model(self, load_dummy_weights: bool = False) -> str:
            return f"loaded {load_dummy_weights}"

    assert plugin.wrap(Runner) and not plugin.wrap(Runner)
    runner = Runner()
    assert runner.load_model(load_dummy_weights=True) == "loaded True"
    assert runner.drafter.runner is runner


def test_a_runner_that_is_not_known_is_left_as_it_is() -> None:
    class Other:
        @staticmethod
        def load_model(model: object) -> object:
            return model

    class Without:
        pass

    assert not plugin.wrap(Other) and not plugin.wrap(Without)
    assert Other.load_model(3) == 3


def test_without_a_word_of_foretoken_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRAFT_URL", "REPAIR", "STATS_FILE", "DRAFTS", "EXACT"):
        monkeypatch.delenv(f"FORETOKEN_{name}", raising=False)
    monkeypatch.setattr(plugin, "wrap", lambda _class: pytest.fail("it wrapped"))
    plugin.register()


class Scheduler:
    def __init__(self, name: str, usage: float = 0.5) -> None:
        self.name = name
        self.kv_cache_manager = SimpleNamespace(usage=usage)

    def get_request_counts(self) -> tuple[int, int]:
        return 3, 4


def test_the_newest_scheduler_tells_what_waits() -> None:
    faults = Faults()
    prepared: list[str] = []
    assert engine.watch(Scheduler, lambda made: prepared.append(made.name)) and not engine.watch(Scheduler)
    one = Scheduler("one", usage=1.5)
    assert prepared == ["one"]
    assert engine.state(faults) == engine.EngineState(3, 4, 1.0)
    del one
    assert engine.state(faults) == engine.UNKNOWN
    assert faults.counts == {}


def test_a_scheduler_of_another_shape_tells_nothing() -> None:
    class Odd:
        pass

    faults = Faults()
    engine.watch(Odd)
    odd = Odd()
    assert engine.state(faults) == engine.UNKNOWN
    assert faults.counts == {"scheduler": 1}
    del odd


class Tensors:
    """The few operations of torch that the probe uses, on lists."""

    float32 = "float32"
    int32 = "int32"

    @staticmethod
    def tensor(values: list[float], dtype: str = "float32") -> Any:
        class List(list[float]):
            def __mul__(self, factor: Any) -> Any:
                return List(value * factor for value in self)

            def tolist(self) -> list[float]:
                return list(self)

        return List(values)


def sound(x: Any, ends: Any, count: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    rows: list[float] = []
    for value, end in zip(x, ends, strict=True):
        rows += [replace_to if replace_from != replace_to and value == replace_from else value] * (end - len(rows))
    assert len(rows) == count
    return Tensors.tensor(rows)


def faulty(_x: Any, _ends: Any, count: int, **_options: Any) -> Any:
    return Tensors.tensor([0.0] * count)


def test_a_sampler_that_is_sound_is_left_as_it_is() -> None:
    sampler = SimpleNamespace(expand_batch_to_tokens=sound)
    faults = Faults()
    assert repair.repair(sampler, Tensors, "0.32.0", faults)
    assert sampler.expand_batch_to_tokens is sound and faults.counts == {}


def test_a_fault_is_mended_where_that_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "replacement", lambda _torch: sound)
    sampler = SimpleNamespace(expand_batch_to_tokens=faulty)
    faults = Faults()
    assert repair.repair(sampler, Tensors, "0.32.0+cpu", faults)
    assert sampler.expand_batch_to_tokens is sound
    assert faults.counts == {"repaired": 1} and faults.total == 0


def test_a_fault_of_another_version_or_one_that_stays_means_no_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "replacement", lambda _torch: faulty)
    for version in ("0.33.0", "0.32.0"):
        faults = Faults()
        assert not repair.repair(SimpleNamespace(expand_batch_to_tokens=faulty), Tensors, version, faults)
        assert faults.total == 1


def test_settings_come_from_the_configuration_before_the_environment() -> None:
    faults = Faults()
    environment = {"FORETOKEN_TTL_S": "200", "FORETOKEN_CORE_MB": "64", "FORETOKEN_ENGINE": "e"}
    found = settings.load({"foretoken": {"ttl_s": 300}}, faults, environment)
    assert (found.ttl_s, found.core_mb, found.engine, found.flush_ms) == (300, 64, "e", 20)
    assert faults.counts == {}


@pytest.mark.parametrize("value", ["many", "-1", "1e99", "", None, True, [1]])
def test_a_setting_that_cannot_be_keeps_its_default(value: object) -> None:
    faults = Faults()
    found = settings.load({"foretoken": {"groups_max": value}}, faults, {})
    assert found.groups_max == settings.Settings().groups_max
    assert list(faults.counts) == ["setting groups_max"]


def test_an_unknown_setting_is_logged() -> None:
    faults = Faults()
    settings.load({"foretoken": {"speed": 9}}, faults, {})
    assert list(faults.counts) == ["setting speed"]


def test_each_kind_of_fault_is_logged_once_and_kinds_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            faults.add("one", "told")
            faults.add("news", "told too", level=logging.INFO)
    assert [record.getMessage() for record in caplog.records] == [
        "foretoken: one: told (logged once)",
        "foretoken: news: told too (logged once)",
    ]
    assert (faults.counts, faults.total) == ({"one": 3, "news": 3}, 3)
    for number in range(1000):
        faults.add(f"kind {number}")
    assert len(faults.counts) <= KINDS_MAX + 1
