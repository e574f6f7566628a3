"""Beside a trained head (MTP, EAGLE, a draft model), not in its place: its drafts, replaced and lengthened from tables.

The head stays the runner's speculator, and is asked for the first tokens of a draft: for as many as pay, by what steps
took and what was accepted (length.py). Its first pass is never left out, for it writes the head's KV. Then one kernel
walks the request's table along the head's tokens (walk.py): where the two differ it takes the one that was right more
often, by place and kind (evidence.py), and it goes on from the table where the head has ended.
"""

from __future__ import annotations

from typing import Any

import torch

from .evidence import NOTES_KEPT, Evidence
from .speculator import ForetokenSpeculator, mapped
from .table import KINDS


class Beside(ForetokenSpeculator):
    """Nothing that goes wrong in it leaves it, and the head's drafts stay."""

    def __init__(self, head: Any, vllm_config: Any, device: Any, req_states: Any) -> None:
        super().__init__(vllm_config, device, req_states)
        self._head = head
        slots, places = self._drafts.shape
        # One slot more: of requests that are gone.
        notes = torch.zeros((NOTES_KEPT, slots + 1, 1 + 2 * places), dtype=torch.int32)
        rather = torch.zeros((places, KINDS + 1), dtype=torch.int32)
        self.drafter.evidence = Evidence(notes.numpy(), rather.numpy())
        self._notes, self._rather = mapped(notes, device), mapped(rather, device)
        # Of each slot: the leading tokens of its draft that are the head's.
        self._kept = torch.full((slots,), places, dtype=torch.int32, device=device)
        # Of the drafts of the step before.
        self._asked = 0
        kinds = {kind.__name__ for kind in type(head).__mro__}
        self._is_standalone = "StandaloneARSpeculator" in kinds
        # Others make all of their tokens at once.
        self._is_divisible = self._is_standalone or "TargetDependentARSpeculator" in kinds
        self._propose, self._init_graphs = head.propose, head.init_cudagraph_manager
        self._observe = head.observe_verification
        head.propose, head.init_cudagraph_manager = self.propose, self.init_cudagraph_manager
        if head.use_acceptance_estimator:
            head.observe_verification = self.observe_verification

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """The head's graphs have the lengths of the model's."""
        self._init_graphs(cudagraph_mode)
        lengths = self._lengths()
        parts = lengths if self._is_divisible else ()
        self.drafter.choose_among(lengths, lambda length: [part for part in parts if 0 < part <= length] or [length])

    def propose(
        self,
        input_batch: Any,
        *arguments: Any,
        dummy_run: bool = False,
        num_speculative_tokens: int | None = None,
        **options: Any,
    ) -> Any:
        head = self._head
        count = self.num_speculative_steps if num_speculative_tokens is None else num_speculative_tokens
        is_whole = dummy_run or not self._is_divisible or self.drafter.gives_up
        asked = count if is_whole else min(count, self.drafter.asked)
        # A draft model makes as many as it has steps, whatever it is asked for.
        head.num_speculative_steps = asked if self._is_standalone and not is_whole else self.num_speculative_steps
        try:
            options |= {"dummy_run": dummy_run, "num_speculative_tokens": asked}
            drafts = self._propose(input_batch, *arguments, **options)
        finally:
            head.num_speculative_steps = self.num_speculative_steps
        if dummy_run:
            return drafts
        # Of a draft model that was asked for one, vLLM's are one wide.
        drafts = head.draft_tokens[: input_batch.num_reqs]
        before, self._asked = self._asked, asked
        notes = self._notes[(self.drafter.launched + 1) % NOTES_KEPT]
        of_head = self._rather, notes, self._kept
        odds = head.draft_token_confidence_probs
        self._end_step(input_batch, drafts, odds, before, asked, head=of_head, count=count)
        return drafts

    def observe_verification(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any) -> None:
        """Lets the head's own estimator learn from the head's tokens alone: those before the first of a table."""
        accepted = torch.clamp(num_sampled - 1, min=0)
        own = self._kept[idx_mapping] if self._is_sound else accepted + num_rejected
        right = torch.minimum(accepted, own)
        refused = torch.minimum(accepted + num_rejected, own) - right
        self._observe(idx_mapping, torch.where(num_sampled > 0, right + 1, num_sampled), refused)
