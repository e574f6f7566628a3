"""Keeps vLLM on a CPU from padding requests that begin.

Where drafts are configured, vLLM 0.32 gives a request that lacks the KV of one token only (a chunk that goes on, a
sibling whose prompt is cached) as many rows as it may ever draft, so that the step still fits a CUDA graph
(Scheduler.schedule, `pad_spec_decode`). A CPU has no such graphs, and computes 16 rows for nothing. vLLM does not pad
if the number of drafts depends on the size of the batch: so it gets a table that names the same number for each size.
"""

from __future__ import annotations

from typing import Any

from .faults import Faults


def skip(scheduler: Any, faults: Faults) -> bool:
    """Never raises. False: it is none on a CPU that drafts and pads, or not what is known here."""
    try:
        tokens = scheduler.num_spec_tokens
        if tokens == 0 or scheduler.dynamic_sd_lookup is not None or not _is_cpu():
            return False
        # By the number of requests in a step.
        scheduler.dynamic_sd_lookup = [tokens] * (scheduler.scheduler_config.max_num_seqs + 1)
    except Exception as error:  # noqa: BLE001 - requests are padded
        faults.add("padding", error)
        return False
    return True


def _is_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())
