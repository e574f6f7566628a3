"""Drafts that change no token: a draft is accepted if and only if it is the token that would have been drawn.

The second runner draws a token by noise that is a pure function of the request's seed, the token's place and the token,
but its verifier accepts by an independent number, so drafts change what is sampled, if not its distribution. For drafts
without a distribution of their own, accepting a draft where it equals the token that the noise draws has the same
probability and leaves every token as it is without drafts. The first runner gets such noise from keyed.py.
So a response is the same in one piece or in chunks, on one
server or several, drafted or not, up to the last bits of the logits, which depend on the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def verifier(original: Callable[..., Any], gumbel_sample: Callable[..., Any], torch: Any) -> Callable[..., Any]:
    """In place of vLLM's `rejection_sample`; drafts with a distribution, and watermarks, stay with that."""

    @functools.wraps(original)
    def rejection_sample(
        target_logits: Any,
        draft_logits: Any,
        draft_sampled: Any,
        cu_num_logits: Any,
        pos: Any,
        idx_mapping: Any,
        expanded_idx_mapping: Any,
        expanded_local_pos: Any,
        temperature: Any,
        seed: Any,
        num_speculative_steps: int,
        *arguments: Any,
        use_fp64: bool = False,
        **options: Any,
    ) -> Any:
        if draft_logits is not None or options.get("contexts") is not None:
            given = (target_logits, draft_logits, draft_sampled, cu_num_logits, pos, idx_mapping)
            more = (expanded_idx_mapping, expanded_local_pos, temperature, seed, num_speculative_steps)
            return original(*given, *more, *arguments, use_fp64=use_fp64, **options)
        drawn = gumbel_sample(
            target_logits,
            expanded_idx_mapping,
            temperature,
            seed,
            pos,
            apply_temperature=False,
            is_drafting=False,
            use_fp64=use_fp64,
        )
        return accept(drawn, draft_sampled, cu_num_logits, num_speculative_steps, torch)

    return rejection_sample


def accept(drawn: Any, drafted: Any, starts: Any, steps: int, torch: Any) -> tuple[Any, Any]:
    """Of each request the tokens drawn up to the first that its draft has otherwise, that one included; how many.

    Row i of a request has the token drawn behind its draft token i (0: the last one sampled). No value is read on the
    host.
    """
    rows = torch.arange(steps + 1, device=drawn.device)
    places = starts[:-1, None] + rows
    is_row = places < starts[1:, None]
    places = torch.where(is_row, places, starts[:-1, None]).to(torch.int64)
    sampled = drawn[places]
    following = torch.clamp(places + 1, max=drawn.shape[0] - 1)
    has_draft = (places + 1 < starts[1:, None]) & is_row
    is_right = has_draft & (drafted[following] == sampled)
    accepted = torch.cumprod(is_right.to(torch.int32), dim=1).sum(dim=1)
    return sampled, (accepted + 1).to(torch.int32)
