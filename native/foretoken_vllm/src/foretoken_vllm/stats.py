"""Counters of one proposer. Written by the step thread, read by the link's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class Counters:
    """Since the proposer began."""

    steps: int = 0
    requests: int = 0
    drafted: int = 0
    """Draft tokens handed to vLLM."""
    accepted: int = 0
    """Tokens that came with a step beyond its first: drafts that the engine accepted."""
    propose_us: float = 0.0
    quick: int = 0
    """Steps of a batch that was as in the step before (batch_plan.py)."""
    untracked: int = 0
    """Requests without a group."""
    probability_min: float = 0.0
    step_us: float = 0.0
    """Time between two calls, where it is less than a second: the engine's steps, without what they waited."""
    step_error: float = 0.0
    """How far steps took of late from what they were expected to, as a part of that."""
    withheld: int = 0
    """Draft tokens that the engine was not given, since they would not have paid for their rows or their step."""
    over_budget: int = 0
    """Steps in which the sidecar allowed no drafts."""
    graph_steps: int = 0
    """Steps without prefill that ran in a full CUDA graph, and that did not: of the second runner, by its thread."""
    outside_steps: int = 0

    def figures(self) -> dict[str, Any]:
        """As JSON can hold them."""
        return asdict(self)
