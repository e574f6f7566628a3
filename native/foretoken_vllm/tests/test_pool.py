"""The KV pool's guard and its release of finished KV, against a store that fails, waits and leases as it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from foretoken_vllm.pool_guard import (
    MISSED_S,
    PAUSE_S_FIRST,
    PAUSE_S_MAX,
    RPC_FAILED,
    SLOW_S,
    TRANSFER_FAILED,
    Circuit,
    GuardedStore,
)
from foretoken_vllm.pool_peers import BEACONS, Peers
from foretoken_vllm.pool_release import LEASE_S, OBJECT_HAS_LEASE, WAITING_MAX, Released, Releaser, released


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


class Store:
    """Answers with `result` for every key, after `seconds`; or raises."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.result: int | Exception = 1
        self.seconds = 0.0
        self.calls = 0
        self.name = "store"

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        self.calls += 1
        self.clock.s += self.seconds
        if isinstance(self.result, Exception):
            raise self.result
        return [self.result] * len(keys)

    def batch_get_replica_desc(self, _keys: Sequence[str]) -> dict[str, list[Any]]:
        return {}

    def batch_get_into_multi_buffers(self, keys: Sequence[str], *_: Any) -> list[int]:
        return self.batch_is_exist(keys)

    def batch_put_from_multi_buffers(self, keys: Sequence[str], *_: Any) -> list[int]:
        return self.batch_is_exist(keys)


def guarded() -> tuple[Clock, Store, Circuit, GuardedStore]:
    clock = Clock()
    store = Store(clock)
    circuit = Circuit(clock)
    return clock, store, circuit, GuardedStore(store, circuit, clock)


def test_what_works_goes_through_and_all_else_is_the_stores_own() -> None:
    _, store, circuit, guard = guarded()
    assert guard.batch_is_exist(["a", "b"]) == [1, 1]
    assert guard.name == "store"
    store.result = 4096
    assert guard.batch_get_into_multi_buffers(["a"], [[1]], [[2]]) == [4096]
    assert circuit.opened == 0


def test_errors_of_single_objects_open_nothing() -> None:
    _, store, circuit, guard = guarded()
    # Not found, no room, its owner gone, its lease over.
    for code in (-704, -200, -800, -707):
        store.result = code
        assert guard.batch_get_into_multi_buffers(["a", "b"], [], []) == [code, code]
        assert guard.batch_put_from_multi_buffers(["a"], [], []) == [code]
    assert circuit.opened == 0


def test_a_store_that_does_not_answer_is_left_out_and_tried_again_with_growing_pauses() -> None:
    clock, store, circuit, guard = guarded()
    store.result = RPC_FAILED
    assert guard.batch_is_exist(["a"]) == [RPC_FAILED]
    for pause in (PAUSE_S_FIRST, 2 * PAUSE_S_FIRST, 4 * PAUSE_S_FIRST):
        calls = store.calls
        clock.s += pause - 0.01
        # As not there, and as not to be had: nobody waits.
        assert guard.batch_is_exist(["a", "b"]) == [0, 0]
        assert guard.batch_get_into_multi_buffers(["a"], [], []) == [RPC_FAILED]
        assert guard.batch_put_from_multi_buffers(["a"], [], []) == [RPC_FAILED]
        assert store.calls == calls
        clock.s += 0.02
        guard.batch_is_exist(["a"])
        assert store.calls == calls + 1
    for _ in range(9):
        clock.s += PAUSE_S_MAX
        guard.batch_is_exist(["a"])
    assert store.calls == 13
    clock.s += PAUSE_S_MAX
    store.result = 1
    assert guard.batch_is_exist(["a"]) == [1]
    assert guard.batch_is_exist(["a"]) == [1]
    assert circuit.skipped == 9


def test_what_could_not_be_loaded_is_not_found_for_a_while() -> None:
    clock, store, _, guard = guarded()
    store.result = -800
    guard.batch_get_into_multi_buffers(["a"], [], [])
    store.result = 1
    assert guard.batch_is_exist(["a", "b"]) == [0, 1]
    clock.s += MISSED_S + 0.1
    assert guard.batch_is_exist(["a", "b"]) == [1, 1]
    assert guard._missed == {}


def test_a_slow_call_and_one_that_raises_open_it_too() -> None:
    _, store, circuit, guard = guarded()
    store.seconds = SLOW_S + 0.1
    assert guard.batch_get_into_multi_buffers(["a"], [], []) == [1]
    assert circuit.opened == 1
    clock, store, circuit, guard = guarded()
    store.result = RuntimeError("closed")
    assert guard.batch_is_exist(["a"]) == [0]
    assert circuit.opened == 1
    clock.s += PAUSE_S_FIRST
    assert guard.batch_put_from_multi_buffers(["a"], [], []) == [RPC_FAILED]
    assert circuit.opened == 2


class Owners:
    """Objects by key, each with its owner's endpoint. An owner that stands still answers when it goes on."""

    def __init__(self, owners: dict[str, str]) -> None:
        self.owners = owners
        self.goes = {endpoint: threading.Event() for endpoint in owners.values()}
        self.values: dict[str, bytes] = {}
        self.reads: list[str] = []
        self.loads = 0
        self.saves = 0

    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[Any]]:
        def described(endpoint: str) -> Any:
            memory = SimpleNamespace(buffer_descriptor=SimpleNamespace(transport_endpoint=endpoint))
            return SimpleNamespace(is_memory_replica=lambda: True, get_memory_descriptor=lambda: memory)

        return {key: [described(self.owners[key])] for key in keys if key in self.owners}

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        return [int(key in self.owners) for key in keys]

    def get(self, key: str) -> bytes:
        self.reads.append(key)
        self.goes[self.owners[key]].wait()
        return self.values.get(key, b"KV")

    def batch_get_into_multi_buffers(self, keys: Sequence[str], *_: Any) -> list[int]:
        self.loads += 1
        return [2] * len(keys)

    def batch_put_from_multi_buffers(self, keys: Sequence[str], *_: Any) -> list[int]:
        self.saves += 1
        return [0] * len(keys)

    def announce(self, endpoint: str) -> Callable[[str, bytes], Any]:
        """What an engine with a segment there puts; the first value of a key stays."""

        def put(key: str, value: bytes) -> None:
            if key not in self.owners:
                self.owners[key] = endpoint
                self.values[key] = value

        return put


def test_an_owner_is_greeted_once_and_then_known() -> None:
    store = Owners({"a": "x:1", "b": "x:1", "c": "y:1"})
    for event in store.goes.values():
        event.set()
    peers = Peers(store)
    assert peers.silent(["a", "b", "c", "gone"]) is None
    assert peers.silent(["a", "b", "c"]) is None
    assert store.reads == ["a", "c"]


def test_nothing_is_loaded_from_an_owner_that_has_never_answered_until_it_does() -> None:
    store = Owners({"a": "x:1", "c": "y:1"})
    store.goes["y:1"].set()
    guard = GuardedStore(store, circuit := Circuit())
    guard._peers = Peers(store, greet_s=0.05)
    for _ in range(3):
        assert guard.batch_get_into_multi_buffers(["a", "c"], [], []) == [TRANSFER_FAILED] * 2
    # Its first contact is still under way: it is not made again, and nobody else's KV is refused for it.
    assert store.reads == ["a"] and store.loads == 0
    assert guard.batch_get_into_multi_buffers(["c"], [], []) == [2]
    store.goes["x:1"].set()
    for _ in range(200):
        if guard.batch_get_into_multi_buffers(["a", "c"], [], []) == [2, 2]:
            break
        threading.Event().wait(0.01)
    assert store.loads == 2 and circuit.opened == 0


def test_nothing_is_saved_while_an_engine_of_the_pool_has_never_answered() -> None:
    store = Owners({})
    store.goes = {endpoint: threading.Event() for endpoint in ("own:1", "new:1")}
    store.goes["own:1"].set()
    peers = Peers(store)
    guard = GuardedStore(store, circuit := Circuit(), peers=peers)
    own = store.announce("own:1")
    peers.look(own)
    assert list(store.owners.values()) == ["own:1"]
    assert guard.batch_put_from_multi_buffers(["a"], [], []) == [0]
    # Another engine starts, and stands still before this one has saved anything there.
    store.announce("new:1")(next(key for key in BEACONS if key not in store.owners), b"beacon")
    for _ in range(3):
        peers.look(own)
        assert guard.batch_put_from_multi_buffers(["a", "b"], [], []) == [TRANSFER_FAILED] * 2
    assert store.saves == 1 and circuit.opened == 0
    assert sorted(store.owners.values()) == ["new:1", "own:1"]
    store.goes["new:1"].set()
    for _ in range(200):
        if guard.batch_put_from_multi_buffers(["a"], [], []) == [0]:
            break
        threading.Event().wait(0.01)
    assert store.saves == 2
    reads = len(store.reads)
    peers.look(own)
    assert len(store.reads) == reads


def test_a_beacon_that_is_lost_with_the_master_is_put_again_and_never_over_anothers() -> None:
    store = Owners(dict.fromkeys(BEACONS[1:], "other:1"))
    store.goes = {endpoint: threading.Event() for endpoint in ("own:1", "other:1")}
    for event in store.goes.values():
        event.set()
    peers = Peers(store)
    own = store.announce("own:1")
    peers.look(own)
    assert store.owners[BEACONS[0]] == "own:1"
    store.owners.clear()
    peers.look(own)
    assert list(store.owners.values()) == ["own:1"]
    # With no place left an engine has no beacon, and works.
    store.owners = dict.fromkeys(BEACONS, "other:1")
    peers.look(own)
    assert GuardedStore(store, Circuit(), peers=peers).batch_put_from_multi_buffers(["a"], [], []) == [0]


def request(status: str, **extra: Any) -> Any:
    params = SimpleNamespace(extra_args=extra or None)
    return SimpleNamespace(
        request_id="r",
        status=SimpleNamespace(name=status),
        sampling_params=params,
        # A prompt of 40 tokens and 30 of output before this chunk, which made 30 more.
        num_prompt_tokens=70,
        block_hashes=[b"%d" % i for i in range(6)],
    )


def test_what_ends_for_good_releases_its_output_and_nothing_of_its_prompt() -> None:
    whole = Released("r", (b"2", b"3", b"4", b"5"))
    assert released(request("FINISHED_STOPPED", foretoken_offset=30), 16) == whole
    assert released(request("FINISHED_LENGTH_CAPPED", foretoken_offset=30, foretoken_last=1), 16) == whole


def test_what_may_go_on_and_what_is_not_known_keep_theirs() -> None:
    kept = [
        request("FINISHED_LENGTH_CAPPED", foretoken_offset=30, foretoken_last=0),
        request("FINISHED_ABORTED", foretoken_offset=30, foretoken_last=1),
        request("FINISHED_STOPPED"),
        request("FINISHED_STOPPED", foretoken_offset="30"),
        request("FINISHED_STOPPED", foretoken_offset=71),
        # The next turn of its session goes on from it.
        request("FINISHED_STOPPED", foretoken_offset=30, foretoken_keep=1),
        SimpleNamespace(sampling_params=None),
    ]
    assert [released(one, 16) for one in kept] == [None] * len(kept)


class Leases:
    """Of a store that refuses to remove what is leased, unless it is forced."""

    def __init__(self) -> None:
        self.leased: set[str] = set()
        self.keys: set[str] = set()
        self.forced = False

    def batch_remove(self, keys: Sequence[str], force: bool) -> list[int]:
        self.forced = self.forced or force
        return [self._remove(key) for key in keys]

    def _remove(self, key: str) -> int:
        if key in self.leased:
            return OBJECT_HAS_LEASE
        if key not in self.keys:
            return -704
        self.keys.remove(key)
        return 0


def test_a_leased_block_is_tried_once_more_when_its_lease_is_over() -> None:
    clock, store = Clock(), Leases()
    releaser = Releaser(store, clock)
    store.keys = {"a", "b", "c"}
    store.leased = {"b", "c"}
    releaser.add(["a", "b", "c", "d"])
    assert releaser.step() == LEASE_S
    assert store.keys == {"b", "c"}
    store.leased = {"c"}
    clock.s += LEASE_S
    assert releaser.step() is None
    assert store.keys == {"c"} and not store.forced
    assert (releaser.removed, releaser.left) == (2, 2)


def test_what_waits_is_bounded() -> None:
    releaser = Releaser(Leases(), Clock())
    releaser.add([str(i) for i in range(WAITING_MAX + 7)])
    assert releaser.left == 7
    while releaser.step() is not None:
        pass
    assert releaser.left == WAITING_MAX + 7
