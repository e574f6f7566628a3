"""Keeps the KV of a chunk's last tokens where the next chunk of the response finds it.

vLLM's scheduler puts a full block into the prefix cache when it schedules the next step, since tokens that are still
drafts may be refused, and Mooncake's connector saves blocks at the same time. A request whose last step accepted
drafts is never scheduled again, so the blocks that they filled are lost: up to a block of tokens, and all drafts of
the last step, are computed again when the response goes on (0.32; the asynchronous scheduler caches them itself).
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from .faults import Faults

_MARK = "_foretoken_keeps_chunk_ends"


def keep(scheduler_class: type[Any], faults: Faults) -> bool:
    """Caches the full blocks of requests that end. False: wrapped before, or not what is known."""
    free = getattr(scheduler_class, "_free_request", None)
    if free is None or getattr(free, _MARK, False):
        return False
    parameters = list(inspect.signature(free).parameters)
    if parameters[:2] != ["self", "request"]:
        faults.add("chunk end", f"{scheduler_class.__name__}._free_request{parameters} is not known")
        return False

    @functools.wraps(free)
    def caching(self: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        try:
            tokens = computed_tokens(request)
            if tokens > 0:
                self.kv_cache_manager.cache_blocks(request, tokens)
        except Exception as error:  # noqa: BLE001 - the tokens are computed again
            faults.add("chunk end", error)
        return free(self, request, *arguments, **options)

    setattr(caching, _MARK, True)
    scheduler_class._free_request = caching
    return True


def computed_tokens(request: Any) -> int:
    """Leading tokens of an ended request whose KV is complete and final; 0: not known.

    Of an aborted request it is known if it has made a token here and was never preempted: otherwise it may have ended
    while its KV was being loaded.
    """
    status = request.status.name
    has_run = status in ("FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED") or (
        status == "FINISHED_ABORTED" and request.num_output_tokens > 0 and request.num_preemptions == 0
    )
    if not has_run:
        return 0
    # The last token has no KV yet; after a stop or at the limit, accepted drafts beyond it were dropped.
    computed: int = request.num_computed_tokens - request.num_output_placeholders
    return max(0, min(computed, int(request.num_tokens) - 1))
