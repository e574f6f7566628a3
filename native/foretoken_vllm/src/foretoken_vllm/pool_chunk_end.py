"""Saves the KV of a chunk's last tokens to the pool when the chunk ends: another server may continue the response.

vLLM's connector builds its saves while it schedules a step, from the tokens that are known then. Those that the last
step of a request makes, and with drafts those by which its count of tokens lags, are never saved (0.32,
MooncakeStoreScheduler.build_connector_meta). The rest goes the way of its own saves at the end of a prefill
(`register_finished_partial_tail`): the blocks are kept from reuse until every worker has stored them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from .chunk_end import computed_tokens

logger = logging.getLogger("vllm.foretoken")


class ChunkEnds:
    """Off for good after the first scheduler of the store that is not as it is known here."""

    def __init__(self) -> None:
        self._is_on = True

    def save(self, scheduler: Any, request: Any, block_ids: Sequence[Sequence[int]]) -> None:
        """`block_ids`: of the request, by KV cache group. Never raises."""
        if not self._is_on:
            return
        try:
            _save(scheduler, request, block_ids)
        except Exception as error:  # noqa: BLE001 - the tokens are computed again
            self._is_on = False
            logger.warning("foretoken: the ends of chunks are not saved to the KV pool: %r", error)


def _save(scheduler: Any, request: Any, block_ids: Sequence[Sequence[int]]) -> None:
    tokens = computed_tokens(request)
    tracker = scheduler._request_trackers.get(request.request_id)
    # States of Mamba layers are handed over by the core itself.
    if tracker is None or scheduler.kv_role == "kv_consumer" or scheduler._boundary_state_group_ids:
        return
    first = tracker.num_saved_tokens
    end = tokens // scheduler._block_size * scheduler._block_size
    if end <= first or request.request_id in scheduler._finished_partial_tail_metas:
        return
    saved = tuple(list(block_ids[group]) for group in scheduler._store_group_ids)
    meta = _meta_class()(
        req_id=request.request_id,
        token_len_chunk=end,
        block_ids=saved,
        block_hashes=list(request.block_hashes),
        can_save=True,
        token_ids=None if tracker.token_ids is None else list(request.all_token_ids[first:end]),
        token_ids_start=first,
        num_prompt_tokens=request.num_prompt_tokens,
        prefill_end_tokens=tracker.prefill_end_tokens,
        completed_token_len=tokens,
    )
    # Block 0 is vLLM's null block. A rank resumes from its own last save, so all blocks are kept.
    blocks = list(dict.fromkeys(block for group in saved for block in group if block != 0))
    if not blocks:
        return
    pool = scheduler._gpu_block_pool
    meta.store_job_id = scheduler._next_store_job_id
    scheduler._next_store_job_id += 1
    scheduler._pinned_saves[meta.store_job_id] = (blocks, scheduler._num_workers)
    pool.touch([pool.blocks[block] for block in blocks])
    tracker.num_saved_tokens = end
    scheduler._finished_partial_tail_metas[request.request_id] = meta


def _meta_class() -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import ReqMeta

    return ReqMeta
