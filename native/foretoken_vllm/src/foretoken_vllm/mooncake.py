"""vLLM's MooncakeStoreConnector as a rollout needs it: vLLM finds it here by `kv_connector_module_path`.

It is the stock connector but for six things:
- On a CPU the one CUDA event of its save path is replaced, if that is all that vLLM's code asks of CUDA there.
- Calls to a store that does not answer fail fast (pool_guard.py, pool_peers.py).
- KV is saved to the engine's own segment while that has room, and not at all while another engine of the pool has
  never answered this one (pool_peers.py).
- KV of finished responses leaves the pool (pool_release.py).
- KV of a chunk's last tokens is saved when the chunk ends (pool_chunk_end.py): the stock connector saves while it
  schedules the next step, and after drafts were refused it lags behind.
- A request that is preempted between two steps and runs again in the next, as after /pause?mode=keep, keeps its entry.
  The stock connector drops it after it was made, and the engine ends with "'NoneType' object is not subscriptable", or
  the request waits for a load that nobody begins (seen in 0.32).
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import re
from importlib.metadata import version
from types import ModuleType, SimpleNamespace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import connector as stock
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import worker as stock_worker

from .pool_chunk_end import ChunkEnds
from .pool_guard import Circuit, GuardedStore
from .pool_peers import Peers
from .pool_release import Released, Releaser, released

logger = logging.getLogger("vllm.foretoken")

# What the code may use of torch.cuda; all but the event belong to `custom_mem_pool`, which is for GPUs.
CUDA_NAMES = frozenset({"Event", "MemPool", "use_mem_pool"})
_CUDA_NAME = re.compile(r"torch\.cuda\.(\w+)")


class _NoEvent:
    """On a CPU a forward pass is over when it returns: nothing is left to wait for."""

    def record(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait(self, *_: Any) -> None: ...


def unknown_cuda(source: str) -> list[str]:
    """What the source uses of torch.cuda beyond what is known to be left out or replaced on a CPU."""
    return sorted(set(_CUDA_NAME.findall(source)) - CUDA_NAMES)


def without_events(torch: ModuleType) -> ModuleType:
    """`torch` as the store's worker sees it on a CPU. No other module sees it."""
    view = ModuleType("torch")
    view.__dict__.update(torch.__dict__)
    view.__dict__["cuda"] = SimpleNamespace(Event=_NoEvent)
    return view


def prepare_cpu() -> None:
    """Raises RuntimeError if this vLLM's connector asks more of CUDA than is replaced."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu() or isinstance(stock_worker.torch.cuda, SimpleNamespace):
        return
    unknown = unknown_cuda(inspect.getsource(stock_worker))
    if unknown:
        names = ", ".join(f"torch.cuda.{name}" for name in unknown)
        raise RuntimeError(
            f"MooncakeStoreConnector of vLLM {version('vllm')} uses {names}, which is not known to work on a CPU: "
            "start without --kv-connector, or with vLLM 0.32"
        )
    stock_worker.torch = without_events(stock_worker.torch)


class MooncakeStoreConnector(stock.MooncakeStoreConnector):  # type: ignore[misc]
    """See the module. The name is the stock one's, as vLLM and the sidecar know it."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        prepare_cpu()
        super().__init__(vllm_config, role, kv_cache_config)
        self._ended: list[Released] = []
        # Requests that were given blocks since the last step's metadata.
        self._allocated: set[str] = set()
        self._chunk_ends = ChunkEnds()
        self._releaser: Releaser | None = None
        worker = self.connector_worker
        if worker is not None and not self._capacity_only:
            store = worker.store
            peers = Peers(store)
            worker.store = GuardedStore(store, Circuit(), peers=peers)
            if worker.preferred_segment is None:
                # A save to another server would wait for it, and holds the engine's blocks meanwhile.
                worker.store_replicate_config.preferred_segment = store.get_hostname()
            # Beacons stay in the segment until its server ends.
            beacon = type(worker.store_replicate_config)()
            beacon.with_hard_pin = True
            beacon.preferred_segment = store.get_hostname()
            peers.start(lambda key, value: store.put(key, value, beacon))
            self._releaser = Releaser(worker.store)
            self._releaser.start()

    def register_kv_caches(self, kv_caches: Any) -> None:
        """Its threads begin here; the one that saves also takes what is to go, after all that it was to save."""
        super().register_kv_caches(kv_caches)
        thread = getattr(self.connector_worker, "kv_send_thread", None)
        if thread is None:
            return
        handle = thread._handle_request

        def handle_or_release(item: Any) -> None:
            if not isinstance(item, Released):
                handle(item)
                return
            try:
                self._release(item, thread.token_databases)
            finally:
                thread.request_queue.task_done()

        thread._handle_request = handle_or_release

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        """In the scheduler."""
        scheduler = self.connector_scheduler
        if scheduler is not None:
            ended = released(request, scheduler._hash_block_size)
            if ended is not None:
                self._ended.append(ended)
            else:
                self._chunk_ends.save(scheduler, request, block_ids)
        return super().request_finished_all_groups(request, block_ids)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> Any:
        """In the scheduler."""
        self._allocated.add(request.request_id)
        return super().update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """In the scheduler, once a step."""
        preempted = scheduler_output.preempted_req_ids or set()
        # Blocks are given to waiting requests after the running ones were preempted: these have begun again.
        again = preempted & self._allocated
        self._allocated.clear()
        if again:
            scheduler_output = dataclasses.replace(scheduler_output, preempted_req_ids=preempted - again)
        meta = super().build_connector_meta(scheduler_output)
        if again:
            meta.preempted_req_ids = preempted
        if self._ended:
            meta.foretoken_released = self._ended
            self._ended = []
        return meta

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """In the worker, once a step."""
        super().start_load_kv(forward_context, **kwargs)
        thread = getattr(self.connector_worker, "kv_send_thread", None)
        if thread is None:
            return
        for item in getattr(self._get_connector_metadata(), "foretoken_released", ()):
            thread.request_queue.put(item)

    def _release(self, item: Released, databases: Any) -> None:
        if self._releaser is None:
            return
        for database in databases:
            # A block of several hashes has the name of its last one; names of the others are not there.
            layout = database.store_layout
            self._releaser.add([layout.key_for(shard, one) for one in item.hashes for shard in layout.local_shard_ids])
