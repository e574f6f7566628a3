"""Counts faults and logs each kind once: no fault may raise an exception in vLLM or fill its log."""

from __future__ import annotations

import logging

logger = logging.getLogger("vllm.foretoken")

KINDS_MAX = 64


class Faults:
    """Counters by kind. Safe from two threads: a lost count is harmless, a lost line is not."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        # Events that are no faults are counted and logged as well.
        self._news: set[str] = set()

    @property
    def total(self) -> int:
        """What went wrong, news left out."""
        return sum(count for kind, count in list(self.counts.items()) if kind not in self._news)

    def add(self, kind: str, problem: object = "", *, level: int = logging.WARNING) -> None:
        """Counts; logs the first of its kind, with the exception under way if there is one."""
        if kind not in self.counts and len(self.counts) >= KINDS_MAX:
            kind = "other"
        if level < logging.WARNING:
            self._news.add(kind)
        seen = self.counts.get(kind, 0)
        self.counts[kind] = seen + 1
        if seen > 0:
            return
        with_trace = isinstance(problem, BaseException) and level >= logging.WARNING
        trace = problem if with_trace and isinstance(problem, BaseException) else None
        logger.log(level, "foretoken: %s: %s (logged once)", kind, problem, exc_info=trace)
