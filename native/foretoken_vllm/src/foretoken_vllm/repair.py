"""Detects and repairs the CPU sampler of vLLM 0.32, which samples wrongly after drafts at temperature > 0.

Its CPU kernel writes the expanded temperatures, top_k and top_p into a copy that is never copied back
(vllm/utils/cpu_triton_utils.py, `_expand_kernel_impl`), so that the sampler reads uninitialized memory. The
repair replaces `expand_batch_to_tokens`. It is applied only if the probe finds the fault, and only in versions in which
it was tested; in others the fault disables drafting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from .faults import Faults
from .settings import vllm_version

REPAIRED_VERSIONS = ("0.32.",)
_NAME = "expand_batch_to_tokens"


def ensure(faults: Faults) -> bool:
    """True: drafts are judged as they should be, now. Never raises. Idempotent."""
    try:
        import torch
        from vllm.platforms import current_platform
        from vllm.v1.sample import rejection_sampler
    except ImportError:
        # Nothing that samples is in this process.
        return True
    try:
        if not current_platform.is_cpu():
            return True
        return repair(rejection_sampler, torch, vllm_version(), faults)
    except Exception as error:  # noqa: BLE001 - a vLLM that cannot be looked into gets no drafts
        faults.add("repair", error)
        return False


def repair(sampler: Any, torch: Any, found_version: str, faults: Faults) -> bool:
    """Looks at `sampler.expand_batch_to_tokens` and replaces it if it is at fault."""
    if is_sound(getattr(sampler, _NAME), torch):
        return True
    if not found_version.startswith(REPAIRED_VERSIONS):
        faults.add("sampler", f"vLLM {found_version} expands sampling parameters wrongly: no drafts")
        return False
    setattr(sampler, _NAME, replacement(torch))
    if not is_sound(getattr(sampler, _NAME), torch):
        faults.add("sampler", "the repair does not hold: no drafts")
        return False
    faults.add("repaired", f"{_NAME} of vLLM {found_version} on CPU", level=logging.INFO)
    return True


def is_sound(expand: Callable[..., Any], torch: Any) -> bool:
    """Whether each row's value is repeated for its tokens, in both types that vLLM expands."""
    counts = torch.tensor([2, 5, 6], dtype=torch.int32)
    for values, kind in (([0.625, 1.375, 0.875], torch.float32), ([17, 5, 23], torch.int32)):
        rows = torch.tensor(values, dtype=kind)
        wanted = [values[0]] * 2 + [values[1]] * 3 + [values[2]]
        # Uninitialized memory may hold the right values of the round before; other values come next.
        for factor in (1, 2, 3):
            found = expand(rows * factor, counts, 6).tolist()
            if found != [value * factor for value in wanted]:
                return False
    replaced = expand(torch.tensor([0.0, 0.5, 0.0]), counts, 6, replace_from=0, replace_to=1)
    return bool(replaced.tolist() == [1.0, 1.0, 0.5, 0.5, 0.5, 1.0])


def replacement(torch: Any) -> Callable[..., Any]:
    """The same contract, by torch's own operators."""

    def expand_batch_to_tokens(
        x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
    ) -> Any:
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        if replace_from != replace_to:
            x = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
        return torch.repeat_interleave(x, counts.to(torch.int64), output_size=num_tokens)

    return expand_batch_to_tokens
