"""What the connector adds to vLLM's, on stand-ins of the classes that it extends: vLLM itself is not installed here."""

from __future__ import annotations

import importlib
import queue
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

STORE = "vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store"
BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"


@dataclass
class Output:
    preempted_req_ids: set[str] | None = None
    scheduled: list[str] = field(default_factory=list)


class Stock:
    """As vLLM 0.32's in what matters here: a preempted request's entry goes, a scheduled one's is needed."""

    def __init__(self, _config: Any, role: str, _cache: Any = None) -> None:
        self._capacity_only = False
        self.connector_scheduler = SimpleNamespace(_hash_block_size=16) if role == "scheduler" else None
        store = SimpleNamespace(get_hostname=lambda: "127.0.0.1:12345")
        self.connector_worker = (
            None
            if role == "scheduler"
            else SimpleNamespace(
                store=store, preferred_segment=None, store_replicate_config=SimpleNamespace(preferred_segment="")
            )
        )
        self.entries: dict[str, object] = {}
        self.metadata: Any = None

    def update_state_after_alloc(self, request: Any, _blocks: Any, _tokens: int) -> None:
        self.entries[request.request_id] = request

    def request_finished_all_groups(self, _request: Any, _blocks: Any) -> tuple[bool, None]:
        return False, None

    def build_connector_meta(self, output: Output) -> Any:
        for name in output.preempted_req_ids or set():
            self.entries.pop(name, None)
        for name in output.scheduled:
            assert self.entries[name] is not None
        return SimpleNamespace(preempted_req_ids=output.preempted_req_ids)

    def register_kv_caches(self, _caches: Any) -> None:
        handled: list[Any] = []
        thread = SimpleNamespace(
            request_queue=queue.Queue(), handled=handled, _handle_request=handled.append, token_databases=[Database()]
        )
        assert self.connector_worker is not None
        self.connector_worker.kv_send_thread = thread

    def start_load_kv(self, _context: Any) -> None:
        pass

    def _get_connector_metadata(self) -> Any:
        return self.metadata


class Database:
    def __init__(self) -> None:
        self.store_layout = SimpleNamespace(local_shard_ids=(0,), key_for=lambda _shard, name: f"m@{name.hex()}")


@pytest.fixture
def mooncake(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    def module(name: str, **contents: Any) -> ModuleType:
        made = ModuleType(name)
        made.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    parts = STORE.split(".")
    for end in range(1, len(parts)):
        module(".".join(parts[:end]), __path__=[])
    worker = module(f"{STORE}.worker", torch=SimpleNamespace(cuda=SimpleNamespace(Event=None)))
    connector = module(f"{STORE}.connector", MooncakeStoreConnector=Stock)
    module(STORE, __path__=[], worker=worker, connector=connector)
    module(BASE, KVConnectorRole=object)
    module("vllm.platforms", current_platform=SimpleNamespace(is_cpu=lambda: False))
    monkeypatch.delitem(sys.modules, "foretoken_vllm.mooncake", raising=False)
    return importlib.import_module("foretoken_vllm.mooncake")


def asked(name: str, status: str = "RUNNING", **extra: Any) -> Any:
    return SimpleNamespace(
        request_id=name,
        status=SimpleNamespace(name=status),
        sampling_params=SimpleNamespace(extra_args=extra),
        num_prompt_tokens=40,
        block_hashes=[b"a", b"b", b"c", b"d"],
    )


def test_a_request_that_was_preempted_between_two_steps_keeps_its_entry(mooncake: ModuleType) -> None:
    connector = mooncake.MooncakeStoreConnector(None, "scheduler")
    connector.update_state_after_alloc(asked("r"), None, 0)
    connector.build_connector_meta(Output(scheduled=["r"]))
    # It is preempted outside a step, and gets blocks again in the next one, whose output says both.
    connector.update_state_after_alloc(asked("r"), None, 0)
    meta = connector.build_connector_meta(Output(preempted_req_ids={"r", "s"}, scheduled=["r"]))
    # The workers hear of it all the same: what they had saved of it counts no more.
    assert meta.preempted_req_ids == {"r", "s"}
    assert set(connector.entries) == {"r"}


def test_a_request_that_is_preempted_and_waits_loses_it(mooncake: ModuleType) -> None:
    connector = mooncake.MooncakeStoreConnector(None, "scheduler")
    connector.update_state_after_alloc(asked("r"), None, 0)
    connector.build_connector_meta(Output(scheduled=["r"]))
    connector.build_connector_meta(Output(preempted_req_ids={"r"}))
    assert connector.entries == {}
    connector.build_connector_meta(Output())


def test_what_has_ended_is_released_after_all_that_it_was_to_save(mooncake: ModuleType) -> None:
    scheduler = mooncake.MooncakeStoreConnector(None, "scheduler")
    scheduler.request_finished_all_groups(asked("r", "FINISHED_STOPPED", foretoken_offset=8), ())
    scheduler.request_finished_all_groups(asked("s", "FINISHED_ABORTED", foretoken_offset=8), ())
    meta = scheduler.build_connector_meta(Output())
    assert not hasattr(scheduler.build_connector_meta(Output()), "foretoken_released")

    worker = mooncake.MooncakeStoreConnector(None, "worker")
    keys: list[str] = []
    worker._releaser = SimpleNamespace(add=keys.extend)
    worker.register_kv_caches(None)
    thread = worker.connector_worker.kv_send_thread
    thread.request_queue.put("a save")
    worker.metadata = meta
    worker.start_load_kv(None)
    while not thread.request_queue.empty():
        thread._handle_request(thread.request_queue.get())
    assert thread.handled == ["a save"]
    assert worker.connector_worker.store_replicate_config.preferred_segment == "127.0.0.1:12345"
    # The prompt of 32 tokens is the first two blocks.
    assert keys == [f"m@{name.hex()}" for name in (b"c", b"d")]


def test_on_a_cpu_the_event_is_replaced_in_that_module_alone(
    mooncake: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = ModuleType("torch")
    cuda = ModuleType("torch.cuda")
    torch.__dict__.update(cuda=cuda, ones="ones")
    monkeypatch.setattr(mooncake.stock_worker, "torch", torch)
    monkeypatch.setattr(sys.modules["vllm.platforms"].current_platform, "is_cpu", lambda: True)
    monkeypatch.setattr(mooncake.inspect, "getsource", lambda _module: "torch.cuda.Event() torch.cuda.MemPool")
    monkeypatch.setattr(mooncake, "version", lambda _name: "0.99")
    mooncake.prepare_cpu()
    event = mooncake.stock_worker.torch.cuda.Event()
    event.record()
    event.synchronize()
    assert mooncake.stock_worker.torch.ones == "ones" and torch.cuda is cuda

    monkeypatch.setattr(mooncake.stock_worker, "torch", SimpleNamespace(cuda=object()))
    monkeypatch.setattr(mooncake.inspect, "getsource", lambda _module: "torch.cuda.Stream() torch.cuda.Event()")
    with pytest.raises(RuntimeError, match=r"vLLM 0\.99 uses torch\.cuda\.Stream"):
        mooncake.prepare_cpu()
