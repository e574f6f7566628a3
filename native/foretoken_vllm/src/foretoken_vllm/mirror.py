"""What the host knows of the second runner's requests: their tokens, a step late, in the form that the proposer reads.

The first runner keeps requests and tokens on the host; of the second, the plugin learns them from what the runner is
given (`add_requests`) and from the copy of the sampled tokens that vLLM makes anyway. A step may still run when its
request has ended, so tokens behind a stop token or the limit are not taken.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np


class MirroredRequest:
    """One request of the runner, and its tokens."""

    __slots__ = ("ended", "is_new", "limit", "num_prompt_tokens", "sampling_params", "slot", "stops", "tokens", "total")

    def __init__(self, data: Any, slot: int, length_max: int) -> None:
        """`data`: vLLM's NewRequestData."""
        given = data.prefill_token_ids
        params = data.sampling_params
        self.slot = slot
        self.sampling_params = params
        self.num_prompt_tokens = int(data.prompt_len)
        self.total = len(given)
        self.limit = min(length_max, self.num_prompt_tokens + int(getattr(params, "max_tokens", None) or length_max))
        self.tokens = np.empty(max(self.total, self.limit), dtype=np.int32)
        self.tokens[: self.total] = given
        self.stops: frozenset[int] = frozenset(getattr(params, "all_stop_token_ids", None) or ())
        self.ended = False
        self.is_new = True

    def take(self, tokens: list[int]) -> list[int]:
        """Those of the tokens that are the response's."""
        if self.ended:
            return []
        taken = tokens[: max(0, self.limit - self.total)]
        if not self.stops.isdisjoint(taken):
            first = next(i for i, token in enumerate(taken) if token in self.stops)
            taken = taken[: first + 1]
        self.ended = len(taken) < len(tokens) or (bool(taken) and taken[-1] in self.stops)
        self.tokens[self.total : self.total + len(taken)] = taken
        self.total += len(taken)
        return taken


class Mirror:
    """Has what the proposer reads of the first runner: `requests`, and the `input_batch` of one step."""

    def __init__(self, length_max: int) -> None:
        self._length_max = length_max
        self.requests: dict[str, MirroredRequest] = {}
        self.input_batch = SimpleNamespace(req_ids=[], num_prompt_tokens=[])
        self._new: list[str] = []

    def add(self, request_id: str, data: Any, slot: int) -> None:
        """A request begins, or goes on after it was preempted."""
        self.requests[request_id] = MirroredRequest(data, slot, self._length_max)
        self._new.append(request_id)

    def remove(self, request_id: str) -> None:
        self.requests.pop(request_id, None)

    def step(self, ids: list[str], sampled: list[list[int]]) -> tuple[list[list[int]], list[MirroredRequest]]:
        """The requests that have new tokens, and those that have begun: they may have none."""
        batch: dict[str, list[int]] = {}
        for request_id, tokens in zip(ids, sampled, strict=True):
            request = self.requests.get(request_id)
            if request is not None and tokens:
                taken = request.take(tokens)
                if taken:
                    batch[request_id] = taken
        for request_id in self._new:
            if request_id in self.requests:
                batch.setdefault(request_id, [])
        self._new.clear()
        requests = [self.requests[request_id] for request_id in batch]
        self.input_batch.req_ids = list(batch)
        self.input_batch.num_prompt_tokens = [request.num_prompt_tokens for request in requests]
        return list(batch.values()), requests


class TokenRows:
    """The tokens of a step's requests, read as the first runner's `token_ids_cpu`: `rows[i, :n]` and `rows[i]`."""

    def __init__(self, requests: list[MirroredRequest]) -> None:
        self._requests = requests

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, tuple):
            row, part = at
            return self._requests[row].tokens[part]
        return self._requests[at].tokens
