"""The plugin's proposer with a thread that ends in the middle of its work, when a file says so. For tests."""

from __future__ import annotations

import os
from typing import Any

from foretoken_vllm.proposer import ForetokenProposer

_FILE = os.environ["FORETOKEN_TEST_STOP_FILE"]


class StoppingProposer(ForetokenProposer):
    """As its base until the file is there; from then on nobody empties its mailbox."""

    def propose(self, *arguments: Any, **options: Any) -> list[list[int]]:
        """Looks for the file before each step."""
        if self._link is not None and os.path.exists(_FILE):
            self._link._stopping.set()
        return super().propose(*arguments, **options)
