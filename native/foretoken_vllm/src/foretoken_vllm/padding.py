"""Keeps vLLM on a CPU from padding requests that begin.

Where drafts are configured, vLLM 0.32 gives a request that lacks the KV of one token only (a chunk that goes on, a
sibling whose prompt is cached) as many rows as it may ever draft, so that the step still fits a CUDA graph
(Scheduler.schedule, `pad_spec_decode`). A CPU has no such graphs, and computes 16 rows for nothing. vLLM does not pad
if the number of drafts depends on the size of the batch: so it gets a table that names the same number for each size.
"""

from __future__ import annotations

import functools
from typing import Any

from .faults import Faults

_MARK = "_foretoken_skips_padding"


def skip(scheduler_class: type[Any], faults: Faults) -> bool:
    """Of each scheduler that is created from now on in a server on a CPU. False: wrapped before."""
    made = scheduler_class.__init__
    if getattr(made, _MARK, False):
        return False

    @functools.wraps(made)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        try:
            if _is_cpu():
                _set_table(self)
        except Exception as error:  # noqa: BLE001 - requests are padded
            faults.add("padding", error)

    setattr(init, _MARK, True)
    scheduler_class.__init__ = init
    return True


def _is_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _set_table(scheduler: Any) -> None:
    tokens = scheduler.num_spec_tokens
    if tokens > 0 and scheduler.dynamic_sd_lookup is None:
        # By the number of requests in a step.
        scheduler.dynamic_sd_lookup = [tokens] * (scheduler.scheduler_config.max_num_seqs + 1)
