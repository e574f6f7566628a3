"""Which owners of KV in the pool have answered this engine, so that a load never waits for one that does not.

Mooncake's first contact with an owner has no deadline: with one that stands still it lasts until that goes on (40 s and
120 s were seen). A load cannot be given up, for it would write into blocks that others have by then. So the first
contact is made by a small read into memory of its own, on a thread of its own, with a deadline here; loads from an
owner whose first contact is still under way fail at once, and their text is computed again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

GREET_S = 2.0


class Peers:
    """Belongs to the threads that load. Raises what the store raises."""

    def __init__(self, store: Any, greet_s: float = GREET_S) -> None:
        self._store = store
        self._greet_s = greet_s
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._greeted: dict[str, threading.Event] = {}

    def silent(self, keys: Sequence[str]) -> str | None:
        """An owner of one of them that does not answer; None: all do, as far as is known."""
        for endpoint, key in self._owners(keys).items():
            if endpoint not in self._known and not self._greet(endpoint, key):
                return endpoint
        return None

    def _owners(self, keys: Sequence[str]) -> dict[str, str]:
        """One key of each."""
        owners: dict[str, str] = {}
        for key, replicas in self._store.batch_get_replica_desc(list(keys)).items():
            for replica in replicas:
                if replica.is_memory_replica():
                    endpoint = replica.get_memory_descriptor().buffer_descriptor.transport_endpoint
                    owners.setdefault(endpoint, key)
        return owners

    def _greet(self, endpoint: str, key: str) -> bool:
        """Whether it has answered in time, be it with an error: then a load ends in time as well."""
        with self._lock:
            under_way = self._greeted.get(endpoint)
            if under_way is not None:
                return False
            answered = threading.Event()
            self._greeted[endpoint] = answered
        threading.Thread(target=self._read, args=(endpoint, key), daemon=True, name="foretoken-kv-greet").start()
        return answered.wait(self._greet_s)

    def _read(self, endpoint: str, key: str) -> None:
        is_read = False
        try:
            is_read = len(self._store.get(key)) > 0
        except Exception:  # noqa: BLE001 - an owner that is gone is no owner that keeps silent
            is_read = False
        with self._lock:
            if is_read:
                self._known.add(endpoint)
            self._greeted.pop(endpoint).set()
