"""For bench/macro/vllm.ts: measures what a vLLM worker spends on proposing drafts, whatever the method.

`--worker-extension-cls vllm_clock.ProposeClock` adds two methods to vLLM's worker, called over /collective_rpc.
"""

from __future__ import annotations

import time
from typing import Any


class ProposeClock:
    """Mixed into vLLM's worker class, whose `model_runner` it wraps."""

    model_runner: Any
    _propose_cpu_ns = 0
    _propose_calls = 0

    def propose_clock_start(self) -> bool:
        """Counts from now on. False: it did so already."""
        runner = self.model_runner
        propose = runner.propose_draft_token_ids
        if getattr(propose, "_is_clocked", False):
            return False

        def clocked(*arguments: Any, **options: Any) -> Any:
            begin = time.thread_time_ns()
            try:
                return propose(*arguments, **options)
            finally:
                self._propose_cpu_ns += time.thread_time_ns() - begin
                self._propose_calls += 1

        clocked._is_clocked = True  # type: ignore[attr-defined]
        runner.propose_draft_token_ids = clocked
        return True

    def propose_clock_read(self) -> list[float]:
        """Microseconds of CPU of the step's own thread, and calls, since the start."""
        return [self._propose_cpu_ns / 1000, self._propose_calls]
