"""What stands between vLLM's connector and a Mooncake store that may be slow, full or gone.

Every call to the store goes through here. A call that failed as a whole, or took longer than `SLOW_S`, opens the
circuit: for a while nothing is looked up, loaded or saved, so that requests are computed as without a pool in place of
waiting one after the other for the same timeout. One call at a time then tries again. Nothing here raises.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from .pool_peers import Peers

logger = logging.getLogger("vllm.foretoken")

# Looking keys up takes a millisecond, and moving a long request's KV tenths of a second over TCP.
SLOW_S = 3.0
PAUSE_S_FIRST = 1.0
PAUSE_S_MAX = 16.0
# Mooncake's codes: a remote call failed (-900 and below), and a key of which it is not known whether it is there.
RPC_FAILED = -900
UNKNOWN = -1
# Of blocks whose owner does not answer.
TRANSFER_FAILED = -800
# What could not be loaded is not found for so long: vLLM looks it up again at once, and would load it again, in a loop
# until the master drops its owner (`--client_ttl`, src/tools/up/mooncake.ts).
MISSED_S = 6.0
MISSED_MAX = 65_536


class Circuit:
    """Closed: calls go through. Safe from several threads."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._open_until = 0.0
        self._pause_s = PAUSE_S_FIRST
        self._is_trying = False
        self.opened = 0
        self.skipped = 0

    def enter(self) -> bool:
        """Whether a call may be made; then `leave` follows."""
        with self._lock:
            if self._open_until == 0.0:
                return True
            if self._is_trying or self._now() < self._open_until:
                self.skipped += 1
                return False
            self._is_trying = True
            return True

    def leave(self, problem: str | None) -> None:
        """A call has ended; `problem`: why the store is not to be asked for a while."""
        with self._lock:
            was_open = self._open_until != 0.0
            self._is_trying = False
            if problem is None:
                if was_open:
                    logger.warning("foretoken: the KV pool answers again, %d calls were left out", self.skipped)
                self._open_until = 0.0
                self._pause_s = PAUSE_S_FIRST
                return
            self._pause_s = min(PAUSE_S_MAX, self._pause_s * 2) if was_open else PAUSE_S_FIRST
            self._open_until = self._now() + self._pause_s
            self.opened += 1
            pause_s = self._pause_s
        logger.warning("foretoken: the KV pool is left out for %.0f s, KV is computed again: %s", pause_s, problem)


class GuardedStore:
    """A `MooncakeDistributedStore` whose three calls on vLLM's path fail fast; all else is the store's own."""

    def __init__(
        self, store: Any, circuit: Circuit, now: Callable[[], float] = time.monotonic, peers: Peers | None = None
    ) -> None:
        self._store = store
        self._circuit = circuit
        self._now = now
        self._peers = Peers(store) if peers is None else peers
        self._is_silent = False
        # Keys that could not be loaded, until when.
        self._missed: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        """1: it is there; 0: it is not; -1: not known."""
        found = self._guarded("lookup", len(keys), 0, lambda: self._store.batch_is_exist(keys))
        if not self._missed:
            return found
        now = self._now()
        # Every entry has the same time to live, and they are in order.
        for key, until in list(self._missed.items()):
            if until > now and len(self._missed) <= MISSED_MAX:
                break
            self._missed.pop(key, None)
        return [0 if key in self._missed else there for key, there in zip(keys, found, strict=True)]

    def batch_get_into_multi_buffers(self, keys: Sequence[str], *rest: Any, **named: Any) -> list[int]:
        """Bytes of each; negative: an error, and the block is computed again."""

        def load() -> list[int]:
            silent = self._peers.silent(keys)
            if silent is None:
                return list(self._store.batch_get_into_multi_buffers(keys, *rest, **named))
            logger.warning("foretoken: %s, which has KV in the pool, does not answer: KV is computed again", silent)
            return [TRANSFER_FAILED] * len(keys)

        loaded = self._guarded("load", len(keys), RPC_FAILED, load)
        until = self._now() + MISSED_S
        for key in (key for key, value in zip(keys, loaded, strict=True) if value < 0):
            self._missed.pop(key, None)
            self._missed[key] = until
        return loaded

    def batch_put_from_multi_buffers(self, keys: Sequence[str], *rest: Any, **named: Any) -> list[int]:
        """Negative: an error, and the block is not in the pool."""

        def save() -> list[int]:
            return list(self._store.batch_put_from_multi_buffers(keys, *rest, **named))

        silent = self._peers.unanswered()
        if (silent is not None) != self._is_silent:
            self._is_silent = silent is not None
            state = "KV is saved again" if silent is None else f"{silent} has not answered yet: no KV is saved"
            logger.warning("foretoken: %s", state)
        if silent is not None:
            return [TRANSFER_FAILED] * len(keys)
        return self._guarded("save", len(keys), RPC_FAILED, save)

    def batch_remove(self, keys: Sequence[str], force: bool = False) -> list[int]:
        """0: it is gone; negative: an error."""
        return self._guarded("release", len(keys), RPC_FAILED, lambda: self._store.batch_remove(keys, force))

    def _guarded(self, what: str, count: int, otherwise: int, call: Callable[[], list[int]]) -> list[int]:
        if not self._circuit.enter():
            return [otherwise] * count
        begin = self._now()
        problem: str | None = None
        result = [otherwise] * count
        try:
            result = list(call())
            problem = _problem_of(what, result)
        except Exception as error:  # noqa: BLE001 - a store that raises is a store that does not answer
            problem = f"{what}: {error}"
        seconds = self._now() - begin
        if problem is None and seconds > SLOW_S:
            problem = f"{what} of {count} blocks took {seconds:.1f} s"
        self._circuit.leave(problem)
        return result


def _problem_of(what: str, result: list[int]) -> str | None:
    """Errors of single objects (not found, no room, owner gone) say nothing against the store as a whole."""
    is_lost = result and all(value <= RPC_FAILED or (what == "lookup" and value == UNKNOWN) for value in result)
    return f"{what}: error {result[0]} for all of {len(result)} blocks" if is_lost else None
