"""Samples a step without drafts as vLLM does without speculation.

vLLM 0.32 sends every step of a server with a `--speculative-config` through its rejection sampler, drafts or none. With
none it draws from the same distribution as its plain sampler, but does the work of both: on CPU about a tenth of a
small model's step (`bench:vllm --batches 32 --null`). The runner's own code takes the plain sampler if the metadata
of drafts is None, so it gets None. Of the metadata only the rows of the logits are read then, so it is built from
values that do not change from step to step.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

from .faults import Faults

_MARK = "_foretoken_shortcut"
# Methods of the runner, and their parameters as they are known here.
_SAMPLE = ("_sample", ["logits", "spec_decode_metadata"])
_METADATA = ("_calc_spec_decode_metadata", ["num_draft_tokens", "cu_num_scheduled_tokens"])
# Batch sizes whose metadata are kept.
_KEPT_MAX = 1024


def take(runner: Any, faults: Faults) -> bool:
    """Wraps the runner's methods. False: one is not what is known here, or was wrapped before; that one stays."""
    return all([_wrap(runner, _SAMPLE, _sampling, faults), _wrap(runner, _METADATA, _describing, faults)])


def _wrap(
    runner: Any, known: tuple[str, list[str]], make: Callable[[Any, Any], Callable[..., Any]], faults: Faults
) -> bool:
    name, parameters = known
    method = getattr(runner, name, None)
    if not callable(method) or getattr(method, _MARK, False):
        return False
    if list(inspect.signature(method).parameters) != parameters:
        faults.add("shortcut", f"{type(runner).__name__}.{name} is not known: steps without drafts stay as they are")
        return False
    wrapped = functools.wraps(method)(make(runner, method))
    setattr(wrapped, _MARK, True)
    setattr(runner, name, wrapped)
    return True


def _sampling(_runner: Any, sample: Any) -> Callable[..., Any]:
    def shorter(logits: Any, spec_decode_metadata: Any) -> Any:
        if spec_decode_metadata is not None and spec_decode_metadata.max_spec_len == 0:
            return sample(logits, None)
        return sample(logits, spec_decode_metadata)

    return shorter


def _describing(runner: Any, describe: Any) -> Callable[..., Any]:
    kept: dict[int, Any] = {}

    def shorter(num_draft_tokens: Any, cu_num_scheduled_tokens: Any) -> Any:
        if num_draft_tokens.any():
            return describe(num_draft_tokens, cu_num_scheduled_tokens)
        count = len(num_draft_tokens)
        metadata = kept.get(count)
        if metadata is None:
            metadata = describe(num_draft_tokens, cu_num_scheduled_tokens)
            if len(kept) < _KEPT_MAX:
                kept[count] = metadata
            return metadata
        metadata = copy.copy(metadata)
        # As the runner has it where nothing speculates.
        metadata.logits_indices = runner.query_start_loc.gpu[1 : count + 1] - 1
        return metadata

    return shorter
