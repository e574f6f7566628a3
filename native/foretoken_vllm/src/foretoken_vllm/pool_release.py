"""Takes the KV of finished responses out of the pool, so that it does not push out the KV of those that go on.

A response is finished when its last chunk ended by a stop token, or reached a length that the sidecar called the last
(`foretoken_last`). Only blocks that hold output go: the prompt's belong to the response's siblings too. Removal is
never forced, for another server may be reading: a block with a lease is tried once more when the lease is over, and
then left to the pool's own eviction. An aborted request is left to it as well: nobody here knows whether it goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger("vllm.foretoken")

# Blocks that wait for the end of a lease, at most; beyond, the oldest are left to eviction.
WAITING_MAX = 65_536
# A little longer than the lease that the master grants (`--default_kv_lease_ttl`, src/tools/up/mooncake.ts).
LEASE_S = 5.5
OBJECT_HAS_LEASE = -706
_BATCH = 512


@dataclass(frozen=True)
class Released:
    """KV that nobody continues: `hashes` of the blocks from the first one with output on."""

    req_id: str
    hashes: tuple[bytes, ...]


def released(request: Any, hash_block_size: int) -> Released | None:
    """What may go now that the request has ended; None: nothing, or it may go on elsewhere."""
    params = getattr(request, "sampling_params", None)
    extra = getattr(params, "extra_args", None) or {}
    if extra.get("foretoken_keep") == 1:
        # The next turn of its session continues from these blocks; the store evicts those that are not read again.
        return None
    offset = extra.get("foretoken_offset")
    if not isinstance(offset, int) or not 0 <= offset <= request.num_prompt_tokens:
        return None
    status = request.status.name
    is_last = status == "FINISHED_STOPPED" or (status == "FINISHED_LENGTH_CAPPED" and extra.get("foretoken_last") == 1)
    if not is_last:
        return None
    first = (request.num_prompt_tokens - offset) // hash_block_size
    hashes = tuple(bytes(one) for one in request.block_hashes[first:])
    return Released(request.request_id, hashes) if hashes else None


class Releaser:
    """Removes keys from the store on a thread of its own. Counts, and raises nothing."""

    def __init__(self, store: Any, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._now = now
        self._wake = threading.Condition()
        self._due: deque[tuple[float, str]] = deque()
        self._fresh: deque[str] = deque()
        self.removed = 0
        self.left = 0

    def start(self) -> None:
        """Works until its process ends."""
        threading.Thread(target=self._run, daemon=True, name="foretoken-kv-release").start()

    def add(self, keys: Sequence[str]) -> None:
        """They are tried at once."""
        with self._wake:
            self._fresh.extend(keys)
            while len(self._fresh) > WAITING_MAX:
                self._fresh.popleft()
                self.left += 1
            self._wake.notify()

    def step(self) -> float | None:
        """One batch. Returns seconds until there is more to do; None: nothing is left."""
        now = self._now()
        with self._wake:
            again = [self._due.popleft()[1] for _ in range(_BATCH) if self._due and self._due[0][0] <= now]
            fresh = [self._fresh.popleft() for _ in range(min(_BATCH, len(self._fresh)))]
        leased = self._remove(fresh)
        self.left += len(self._remove(again))
        with self._wake:
            self._due.extend((now + LEASE_S, key) for key in leased)
            while len(self._due) > WAITING_MAX:
                self._due.popleft()
                self.left += 1
            if self._fresh:
                return 0.0
            return max(0.0, self._due[0][0] - self._now()) if self._due else None

    def _remove(self, keys: list[str]) -> list[str]:
        """Returns those with a lease."""
        if not keys:
            return []
        results = self._store.batch_remove(keys, False)
        leased = [key for key, result in zip(keys, results, strict=True) if result == OBJECT_HAS_LEASE]
        gone = sum(1 for result in results if result == 0)
        self.removed += gone
        self.left += len(keys) - gone - len(leased)
        return leased

    def _run(self) -> None:
        while True:
            try:
                wait_s = self.step()
            except Exception:
                logger.exception("foretoken: KV of finished responses stays in the pool")
                wait_s = 1.0
            with self._wake:
                if not self._fresh:
                    self._wake.wait(wait_s)
