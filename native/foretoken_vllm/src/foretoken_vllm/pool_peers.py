"""Which owners of KV in the pool have answered this engine, so that a load or save never waits for one that does not.

Mooncake's first contact with an owner has no deadline: with one that stands still it lasts until that goes on (25 s to
120 s were seen). A load or save cannot be given up: it would write into blocks that others have by then, or read them.
So the first contact is made by a small read into memory of its own, on a thread of its own. Loads from an owner whose
first contact is still under way fail at once. The master decides where a save goes, so meanwhile nothing is saved.

Owners are known before they hold KV: each keeps a beacon in its own segment, a small object under one of the names in
`BEACONS`, and looks for those of the others once in `LOOK_S`.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

logger = logging.getLogger("vllm.foretoken")

GREET_S = 2.0
LOOK_S = 1.0
# An owner that works answers within milliseconds.
ANSWER_S = 0.2
# The master drops a silent owner within `--client_ttl` (src/tools/up/mooncake.ts): then nothing is saved there.
DROPPED_S = 6.0
# More engines than that have no beacon, and are greeted at the first load from them.
BEACONS = tuple(f"foretoken-beacon/{place}" for place in range(128))


class Peers:
    """Safe from several threads. Raises what the store raises."""

    def __init__(self, store: Any, greet_s: float = GREET_S) -> None:
        self._store = store
        self._greet_s = greet_s
        self._lock = threading.Lock()
        self._known: set[str] = set()
        # First contacts that are under way, and since when.
        self._greeted: dict[str, tuple[threading.Event, float]] = {}
        # Whose beacons were there at the last look.
        self._there: frozenset[str] = frozenset()
        # Where this engine's own beacon lies.
        self._own: str | None = None

    def silent(self, keys: Sequence[str]) -> str | None:
        """An owner of one of them that does not answer; None: all do, as far as is known."""
        for endpoint, key in self._owners(keys).items():
            if endpoint not in self._known and not self._greet(endpoint, key, self._greet_s):
                return endpoint
        return None

    def unanswered(self) -> str | None:
        """An owner of the pool that has not answered its first contact for `ANSWER_S`; waits as long at most."""
        with self._lock:
            under_way = list(self._greeted.items())
        for endpoint, (answered, since) in under_way:
            if endpoint not in self._there and time.monotonic() > since + DROPPED_S:
                continue
            if not answered.wait(max(0.0, since + ANSWER_S - time.monotonic())):
                return endpoint
        return None

    def start(self, announce: Callable[[str, bytes], Any]) -> None:
        """Looks until its process ends. `announce`: puts a value into this engine's own segment, if the key is free."""
        threading.Thread(target=self._watch, args=(announce,), daemon=True, name="foretoken-kv-peers").start()

    def look(self, announce: Callable[[str, bytes], Any]) -> None:
        """Once. Waits for nobody's first contact."""
        # The store logs an error for each key that it is asked to describe and does not have.
        found = zip(BEACONS, self._store.batch_is_exist(list(BEACONS)), strict=True)
        owners = self._owners_by_key([key for key, there in found if there == 1])
        self._there = frozenset(owners.values())
        if self._own is None or self._own not in owners.values():
            self._announce(owners, announce)
        for key, endpoint in owners.items():
            if endpoint != self._own and endpoint not in self._known:
                self._greet(endpoint, key, 0)

    def _announce(self, owners: dict[str, str], announce: Callable[[str, bytes], Any]) -> None:
        name = uuid.uuid4()
        # Engines that start together begin at different places.
        free = [key for key in BEACONS[name.int % len(BEACONS) :] + BEACONS if key not in owners]
        if not free:
            return
        announce(free[0], name.bytes)
        endpoint = self._owners_by_key(free[:1]).get(free[0])
        # The key may have been taken meanwhile, by an owner that may not answer: only a read that is in time counts.
        if endpoint is None or not self._greet(endpoint, free[0], self._greet_s):
            return
        if bytes(self._store.get(free[0])) == name.bytes:
            self._own = endpoint

    def _watch(self, announce: Callable[[str, bytes], Any]) -> None:
        while True:
            try:
                self.look(announce)
            except Exception as error:  # noqa: BLE001 - a store that raises is a store that does not answer
                logger.debug("foretoken: the KV pool's engines cannot be looked up: %s", error)
            threading.Event().wait(LOOK_S)

    def _owners(self, keys: Sequence[str]) -> dict[str, str]:
        """One key of each."""
        owners: dict[str, str] = {}
        for key, endpoint in self._owners_by_key(keys).items():
            owners.setdefault(endpoint, key)
        return owners

    def _owners_by_key(self, keys: Sequence[str]) -> dict[str, str]:
        owners: dict[str, str] = {}
        if not keys:
            return owners
        for key, replicas in self._store.batch_get_replica_desc(list(keys)).items():
            for replica in replicas:
                if replica.is_memory_replica():
                    owners[key] = replica.get_memory_descriptor().buffer_descriptor.transport_endpoint
        return owners

    def _greet(self, endpoint: str, key: str, wait_s: float) -> bool:
        """Whether it has answered in time, be it with an error: then a load ends in time as well."""
        with self._lock:
            if endpoint in self._greeted:
                return False
            answered = threading.Event()
            self._greeted[endpoint] = (answered, time.monotonic())
        threading.Thread(target=self._read, args=(endpoint, key), daemon=True, name="foretoken-kv-greet").start()
        return answered.wait(wait_s)

    def _read(self, endpoint: str, key: str) -> None:
        is_read = False
        try:
            is_read = len(self._store.get(key)) > 0
        except Exception:  # noqa: BLE001 - an owner that is gone is no owner that keeps silent
            is_read = False
        with self._lock:
            if is_read:
                self._known.add(endpoint)
            self._greeted.pop(endpoint)[0].set()
