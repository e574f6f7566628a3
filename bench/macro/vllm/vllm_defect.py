"""For bench/macro/drift.ts: brings back the fault of vLLM's CPU sampler that the plugin repairs (repair.py of it)."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample import rejection_sampler

# Imported before the model is loaded, after which the plugin repairs it.
_FAULTY: Any = rejection_sampler.expand_batch_to_tokens
_counts = {"rows": 0, "wrong": 0}


class Defect:
    """`--worker-extension-cls vllm_defect.Defect`: methods of vLLM's worker, called over /collective_rpc."""

    def bring_back_defect(self) -> None:
        sound: Any = rejection_sampler.expand_batch_to_tokens

        def counted(*args: Any, **kwargs: Any) -> Any:
            found = _FAULTY(*args, **kwargs)
            _counts["rows"] += found.shape[0]
            _counts["wrong"] += int(torch.count_nonzero(found != sound(*args, **kwargs)))
            return found

        rejection_sampler.expand_batch_to_tokens = counted

    def defect_counts(self) -> dict[str, int]:
        """Drafted positions, and those that were sampled at a wrong temperature."""
        return _counts
