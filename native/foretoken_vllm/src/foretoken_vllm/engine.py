"""What the scheduler of this process's engine knows: requests waiting and running, and the share of KV in use.

The scheduler and the drafting worker are in one process where the executor is `uni`, vLLM's own choice for one GPU;
elsewhere nothing is known here. Only looks, and only from the link's thread.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .faults import Faults

_MARK = "_foretoken_watches"
_newest: Callable[[], Any] = lambda: None  # noqa: E731 - of the type of a weak reference


@dataclass(frozen=True, slots=True)
class EngineState:
    """As of now. -1: not known."""

    running: int = -1
    waiting: int = -1
    kv_usage: float = -1.0


UNKNOWN = EngineState()


def watch(scheduler_class: type[Any], prepare: Callable[[Any], object] = lambda _scheduler: None) -> bool:
    """Prepares and remembers each scheduler that is created from now on. False: wrapped before."""
    made = scheduler_class.__init__
    if getattr(made, _MARK, False):
        return False

    @functools.wraps(made)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        prepare(self)
        global _newest
        _newest = weakref.ref(self)

    setattr(init, _MARK, True)
    scheduler_class.__init__ = init
    return True


def scheduler() -> Any:
    """This process's newest; None: it is in another."""
    return _newest()


def state(faults: Faults) -> EngineState:
    """Never raises: an unknown kind of scheduler reports nothing."""
    scheduler = _newest()
    if scheduler is None:
        return UNKNOWN
    try:
        running, waiting = scheduler.get_request_counts()
        usage = float(scheduler.kv_cache_manager.usage)
        return EngineState(int(running), int(waiting), min(max(usage, 0.0), 1.0))
    except Exception as error:  # noqa: BLE001 - figures are not worth a fault of the engine
        faults.add("scheduler", error)
        return UNKNOWN
