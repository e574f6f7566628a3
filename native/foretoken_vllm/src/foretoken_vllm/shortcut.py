"""Samples a step that verifies no draft as vLLM does without speculation.

vLLM 0.32 sends every step of a server with a `--speculative-config` through its rejection sampler, drafts or none. With
none it draws from the same distribution as its plain sampler, but does the work of both: on CPU 0.5 to 1 ms a step.
The runner's own code takes the plain sampler where the metadata of drafts is None, so that is what it is given.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from .faults import Faults

_MARK = "_foretoken_shortcut"
_PARAMETERS = ["logits", "spec_decode_metadata"]


def take(runner: Any, faults: Faults) -> bool:
    """Wraps the runner's `_sample`. False: it is not what is known here, or was wrapped before."""
    sample = getattr(runner, "_sample", None)
    if not callable(sample) or getattr(sample, _MARK, False):
        return False
    if list(inspect.signature(sample).parameters) != _PARAMETERS:
        faults.add("shortcut", f"{type(runner).__name__}._sample is not known: steps without drafts stay as they are")
        return False

    @functools.wraps(sample)
    def shorter(logits: Any, spec_decode_metadata: Any) -> Any:
        if spec_decode_metadata is not None and spec_decode_metadata.max_spec_len == 0:
            return sample(logits, None)
        return sample(logits, spec_decode_metadata)

    setattr(shorter, _MARK, True)
    runner._sample = shorter
    return True
