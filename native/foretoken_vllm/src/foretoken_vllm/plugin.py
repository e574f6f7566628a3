"""The entry point of group `vllm.general_plugins`: vLLM calls it in each of its processes, perhaps more than once.

Inert unless vLLM's configuration names Foretoken. Once a model is loaded, it repairs the sampler if that is faulty,
for every method of speculation, keys its noise where the settings ask for `exact`, and binds the proposer to its
runner. It keeps a reference to the scheduler for its counters, lets it cache the last blocks of a chunk, and says where
it pads. It changes nothing that it does not recognise.
"""

from __future__ import annotations

import functools
import inspect
import logging
from typing import Any

from . import chunk_end, engine, keyed, padding, repair, settings
from .faults import Faults

_MARK = "_foretoken_binds"
faults = Faults()


def register() -> None:
    """Never raises."""
    try:
        if not settings.is_wanted():
            return
        for runner_class in _runner_classes():
            wrap(runner_class)
        for scheduler_class in _scheduler_classes():
            engine.watch(scheduler_class, lambda scheduler: padding.fit(scheduler, faults))
            chunk_end.keep(scheduler_class, faults)
        _second_runner()
    except Exception as error:  # noqa: BLE001 - a plugin that raises ends vLLM
        faults.add("register", error)


def _runner_classes() -> list[type[Any]]:
    """Only what is importable here: the CPU runner overrides the GPU runner's `load_model`."""
    found: list[type[Any]] = []
    try:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        found.append(GPUModelRunner)
        from vllm.v1.worker.cpu_model_runner import CPUModelRunner

        found.append(CPUModelRunner)
    except ImportError as error:
        faults.add("runner class", error, level=logging.INFO)
    return found


def _second_runner() -> None:
    """Its module needs Triton, as the runner does; without it vLLM has the first runner alone."""
    from vllm.triton_utils import HAS_TRITON

    if HAS_TRITON:
        from . import speculator

        speculator.take_over(faults)


def _scheduler_classes() -> list[type[Any]]:
    try:
        from vllm.v1.core.sched.scheduler import Scheduler
    except ImportError as error:
        faults.add("scheduler class", error, level=logging.INFO)
        return []
    return [Scheduler]


def wrap(runner_class: type[Any]) -> bool:
    """After `load_model` the sampler is looked at, and the drafter learns of its runner.

    False: wrapped before, or not what is known.
    """
    load_model = runner_class.__dict__.get("load_model")
    if load_model is None or getattr(load_model, _MARK, False):
        return False
    parameters = list(inspect.signature(load_model).parameters)
    if not parameters or parameters[0] != "self":
        faults.add("load_model", f"{runner_class.__name__}.load_model{parameters} is not known")
        return False

    @functools.wraps(load_model)
    def bound(self: Any, *arguments: Any, **options: Any) -> Any:
        result = load_model(self, *arguments, **options)
        # Before that, vLLM has not put the kernels of its CPU build in place.
        if getattr(self, "speculative_config", None) is not None:
            repair.ensure(faults)
        if settings.load(getattr(getattr(self, "vllm_config", None), "additional_config", None), faults).exact > 0:
            keyed.install(self, faults)
        bind = getattr(getattr(self, "drafter", None), "bind_runner", None)
        if callable(bind):
            bind(self)
        return result

    setattr(bound, _MARK, True)
    runner_class.load_model = bound
    return True
