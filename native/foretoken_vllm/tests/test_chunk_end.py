"""What is kept of a request that ends, on stand-ins of vLLM's scheduler and of the store's."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from foretoken_vllm import chunk_end
from foretoken_vllm.faults import Faults
from foretoken_vllm.pool_chunk_end import ChunkEnds

DATA = "vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data"


def ended(status: str, **more: Any) -> Any:
    """100 tokens, of which all but the last are computed."""
    fields = {
        "request_id": "r",
        "status": SimpleNamespace(name=status),
        "num_computed_tokens": 99,
        "num_output_placeholders": 0,
        "num_output_tokens": 60,
        "num_preemptions": 0,
        "num_tokens": 100,
        "num_prompt_tokens": 40,
        "all_token_ids": list(range(100)),
        "block_hashes": [b"%d" % i for i in range(6)],
    }
    return SimpleNamespace(**{**fields, **more})


@pytest.mark.parametrize(
    ("status", "more", "tokens"),
    [
        ("FINISHED_LENGTH_CAPPED", {}, 99),
        # Accepted drafts beyond the stop token were dropped.
        ("FINISHED_STOPPED", {"num_computed_tokens": 104}, 99),
        # The asynchronous scheduler counts a step ahead.
        ("FINISHED_LENGTH_CAPPED", {"num_computed_tokens": 98, "num_output_placeholders": 1}, 97),
        ("FINISHED_ABORTED", {}, 99),
        # Its KV may still have been on its way.
        ("FINISHED_ABORTED", {"num_output_tokens": 0, "num_computed_tokens": 64}, 0),
        ("FINISHED_ABORTED", {"num_preemptions": 1}, 0),
        ("FINISHED_ERROR", {}, 0),
    ],
)
def test_the_kv_of_an_ended_request_is_known_to_be_complete(status: str, more: dict[str, Any], tokens: int) -> None:
    assert chunk_end.computed_tokens(ended(status, **more)) == tokens


class Manager:
    def __init__(self) -> None:
        self.cached: list[tuple[str, int]] = []

    def cache_blocks(self, request: Any, tokens: int) -> None:
        self.cached.append((request.request_id, tokens))


def test_blocks_are_cached_before_the_request_lets_go_of_them() -> None:
    class Scheduler:
        def __init__(self) -> None:
            self.kv_cache_manager = Manager()

        def _free_request(self, request: Any, delay_free_blocks: bool = False) -> str:
            return f"{request.request_id} {len(self.kv_cache_manager.cached)} {delay_free_blocks}"

    faults = Faults()
    assert chunk_end.keep(Scheduler, faults) and not chunk_end.keep(Scheduler, faults)
    scheduler = Scheduler()
    assert scheduler._free_request(ended("FINISHED_LENGTH_CAPPED"), delay_free_blocks=True) == "r 1 True"
    assert scheduler._free_request(ended("FINISHED_ERROR")) == "r 1 False"
    assert scheduler.kv_cache_manager.cached == [("r", 99)]
    # A request of another shape ends as before.
    assert scheduler._free_request(SimpleNamespace(request_id="odd")) == "odd 1 False"
    assert faults.counts == {"chunk end": 1}


def test_a_scheduler_of_another_shape_stays_as_it_is() -> None:
    class Odd:
        def _free_request(self, name: str) -> str:
            return name

    faults = Faults()
    assert not chunk_end.keep(Odd, faults)
    assert Odd()._free_request("r") == "r" and faults.counts == {"chunk end": 1}


class Pool:
    def __init__(self) -> None:
        self.blocks = [f"block {i}" for i in range(10)]
        self.touched: list[str] = []

    def touch(self, blocks: list[str]) -> None:
        self.touched += blocks


def store(saved: int) -> Any:
    tracker = SimpleNamespace(num_saved_tokens=saved, token_ids=None, prefill_end_tokens=40)
    return SimpleNamespace(
        kv_role="kv_both",
        _request_trackers={"r": tracker},
        _boundary_state_group_ids=set(),
        _store_group_ids=[0],
        _block_size=16,
        _gpu_block_pool=Pool(),
        _next_store_job_id=7,
        _pinned_saves={},
        _num_workers=2,
        _finished_partial_tail_metas={},
    )


@pytest.fixture(autouse=True)
def _data(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = DATA.split(".")
    for end in range(1, len(parts) + 1):
        made = ModuleType(".".join(parts[:end]))
        made.__dict__.update(__path__=[])
        monkeypatch.setitem(sys.modules, made.__name__, made)
    sys.modules[DATA].__dict__["ReqMeta"] = SimpleNamespace


def test_the_pool_gets_the_full_blocks_that_it_lacks() -> None:
    scheduler, ends = store(saved=64), ChunkEnds()
    ends.save(scheduler, ended("FINISHED_LENGTH_CAPPED"), ([1, 2, 3, 0, 5, 6, 7],))
    [meta] = scheduler._finished_partial_tail_metas.values()
    assert (meta.token_len_chunk, meta.token_ids_start, meta.can_save, meta.store_job_id) == (96, 64, True, 7)
    # The null block is nobody's.
    assert scheduler._pinned_saves == {7: ([1, 2, 3, 5, 6, 7], 2)} and scheduler._next_store_job_id == 8
    assert scheduler._gpu_block_pool.touched == [f"block {i}" for i in (1, 2, 3, 5, 6, 7)]


def test_the_pool_gets_nothing_that_it_has_or_that_is_not_known_to_be_computed() -> None:
    scheduler, ends = store(saved=96), ChunkEnds()
    ends.save(scheduler, ended("FINISHED_LENGTH_CAPPED"), ([1, 2, 3, 4, 5, 6, 7],))
    ends.save(scheduler, ended("FINISHED_ABORTED", num_preemptions=1), ([1, 2, 3, 4, 5, 6, 7],))
    ends.save(store(saved=0), ended("FINISHED_ABORTED", request_id="unknown"), ([1],))
    assert scheduler._finished_partial_tail_metas == {} and scheduler._pinned_saves == {}


def test_a_store_of_another_shape_gets_nothing_and_the_engine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    ends = ChunkEnds()
    ends.save(SimpleNamespace(), ended("FINISHED_LENGTH_CAPPED"), ([1],))
    scheduler = store(saved=0)
    ends.save(scheduler, ended("FINISHED_LENGTH_CAPPED"), ([1, 2, 3, 4, 5, 6, 7],))
    assert scheduler._finished_partial_tail_metas == {}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
