"""Says where vLLM pads requests that begin: on GPUs, where its CUDA graphs need it, and nowhere else.

Where drafts are configured, vLLM gives a request that lacks the KV of one token only (a chunk that goes on, a sibling
whose prompt is cached) as many rows as it may ever draft, so that the step still fits a CUDA graph (Scheduler.schedule,
`pad_spec_decode`). It does so only while it has no table of drafts by the size of the batch. A CPU has no such graphs
and computes 16 rows for nothing: it gets a table that names the same number for each size. On a GPU the table that
names the lengths to be captured has done its work when the scheduler is made, and is taken away (length.py brings its
own where fewer drafts are faster).
"""

from __future__ import annotations

from typing import Any

from . import runner_v2, settings
from .faults import Faults


def fit(scheduler: Any, faults: Faults) -> bool:
    """Never raises. False: it drafts nothing, has what it needs, or is not what is known here."""
    try:
        tokens, table = scheduler.num_spec_tokens, scheduler.dynamic_sd_lookup
        if tokens == 0:
            return False
        if settings.is_cpu():
            # By the number of requests in a step; what the user has configured stays.
            wanted = table or [tokens] * (scheduler.scheduler_config.max_num_seqs + 1)
        else:
            wanted = None if runner_v2.has_tables(scheduler.vllm_config) else table
        scheduler.dynamic_sd_lookup = wanted
    except Exception as error:  # noqa: BLE001 - requests are padded, or not
        faults.add("padding", error)
        return False
    return wanted is not table
