"""What the host knows of the second runner's requests: their tokens, a step late, in arrays by the runner's slots.

The first runner keeps requests and tokens on the host; of the second, the plugin learns them from what the runner is
given (`add_requests`) and from the copy of the sampled tokens that vLLM makes anyway. A step may still run when its
request has ended, so tokens behind a stop token or the limit are not taken.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray


class MirroredRequest:
    """One request of the runner."""

    __slots__ = ("num_prompt_tokens", "sampling_params", "slot", "stops")

    def __init__(self, data: Any, slot: int) -> None:
        """`data`: vLLM's NewRequestData."""
        self.slot = slot
        self.sampling_params = data.sampling_params
        self.num_prompt_tokens = int(data.prompt_len)
        # Those at which vLLM's scheduler ends a response (`check_stop`): with `ignore_eos` there is no `eos_token_id`.
        ends = [getattr(data.sampling_params, "eos_token_id", None), *(data.sampling_params.stop_token_ids or ())]
        self.stops = frozenset(token for token in ends if token is not None)


class Mirror:
    """Has what the proposer reads of the first runner: `requests`, and the `input_batch` of one step."""

    def __init__(self, slots: int, length_max: int) -> None:
        self._length_max = length_max
        self.requests: dict[str, MirroredRequest] = {}
        self.input_batch = SimpleNamespace(req_ids=[], num_prompt_tokens=[])
        # Of each slot's request: its tokens and their number, and the most that it may have: no more, once it has
        # ended. A request that is gone has the slot behind all others. Pages that have had no tokens take no memory.
        self._gone = slots
        self.tokens = np.zeros((slots + 1, length_max), np.int32)
        self.totals = np.zeros(slots + 1, np.int64)
        self._limits = np.zeros(slots + 1, np.int64)
        # The first step that was launched with it: earlier ones have made tokens that vLLM drops.
        self._begins = np.zeros(slots + 1, np.int64)
        self._new: list[str] = []
        # Stop tokens of any request; None: to be collected.
        self._stop_ids: frozenset[int] | None = None
        # Of the step before: its requests, and their slots.
        self._ids: list[str] = []
        self._slots = np.zeros(0, np.int64)

    def add(self, request_id: str, data: Any, slot: int, begins: int = 0) -> None:
        """A request begins with step number `begins`, or goes on after it was preempted."""
        request = MirroredRequest(data, slot)
        given = data.prefill_token_ids
        self.requests[request_id] = request
        self.tokens[slot, : len(given)] = given
        self.totals[slot] = len(given)
        most = int(getattr(request.sampling_params, "max_tokens", None) or self._length_max)
        self._limits[slot] = min(self._length_max, request.num_prompt_tokens + most)
        self._begins[slot] = begins
        self._new.append(request_id)
        self._forget()

    def remove(self, request_id: str) -> None:
        self.requests.pop(request_id, None)
        self._forget()

    def take(self, ids: list[str], tokens: NDArray[Any], counts: NDArray[Any], step: int) -> NDArray[np.int64]:
        """A step's tokens, [requests, width], of which `counts` are there; how many of each are the response's."""
        slots = self.slots_of(ids)
        places = np.arange(tokens.shape[1])
        totals = self.totals[slots]
        made = np.where(self._begins[slots] <= step, counts, 0)
        kept: NDArray[np.int64] = np.minimum(made, self._limits[slots] - totals)
        if self._stop_ids is None:
            self._stop_ids = frozenset().union(*(one.stops for one in self.requests.values()))
        may_stop = np.zeros(tokens.shape, bool)
        for stop in self._stop_ids:
            may_stop |= tokens == stop
        for row, place in np.argwhere(may_stop).tolist():
            # In order: of the tokens behind a stop token none is kept.
            if place < kept[row] and int(tokens[row, place]) in self.requests[ids[row]].stops:
                kept[row] = place + 1
                self._limits[slots[row]] = totals[row] + place + 1
        rows, columns = np.nonzero(places < kept[:, None])
        self.tokens[slots[rows], totals[rows] + columns] = tokens[rows, columns]
        totals += kept
        self.totals[slots] = totals
        is_cut = kept < made
        self._limits[slots[is_cut]] = totals[is_cut]
        return kept

    def slots_of(self, ids: list[str]) -> NDArray[np.int64]:
        """The requests' slots; of one that is gone the one behind all."""
        if ids != self._ids:
            found = (self.requests.get(name) for name in ids)
            self._slots = np.array([self._gone if one is None else one.slot for one in found], np.int64)
            self._ids = ids.copy()
        return self._slots

    def step(self, ids: list[str], tokens: NDArray[Any], kept: NDArray[Any]) -> tuple[list[str], list[list[int]]]:
        """Those that have begun and are not in the step; and tokens of the step's `input_batch`, in which they are."""
        batch = {name: tokens[row, : kept[row]].tolist() for row, name in enumerate(ids) if kept[row] > 0}
        begun = [name for name in dict.fromkeys(self._new) if name in self.requests]
        self._new.clear()
        for name in begun:
            batch.setdefault(name, [])
        self.input_batch.req_ids = list(batch)
        self.input_batch.num_prompt_tokens = [self.requests[name].num_prompt_tokens for name in batch]
        known = set(ids)
        return [name for name in begun if name not in known], list(batch.values())

    def _forget(self) -> None:
        self._ids, self._slots = [], np.zeros(0, np.int64)
        self._stop_ids = None
