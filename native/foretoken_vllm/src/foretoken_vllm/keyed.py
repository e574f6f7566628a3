"""The first runner's half of `exact`: tokens drawn by noise that depends on seed, place and token alone.

The noise of a row is keyed by the seed of the whole response (`foretoken_seed`, else the request's own) and by how many
tokens stand before the one drawn, prompt included. Steps without drafts and the verification of drafts draw with it
alike, and a draft is accepted where it is the token drawn (exact.py). vLLM's generators are then of no use: they are
dropped, which takes a loop over the rows out of each step.

What goes wrong here costs a step its exactness: vLLM samples it by its own numbers, from the same distribution.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import runner_v2, settings
from .exact import accept
from .faults import Faults

_MARK = "_foretoken_keyed"
_SAMPLE = "vllm.v1.sample"
# As in runner_v2.py.
RELIED_ON: runner_v2.Signatures = (
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._sample", ("fcb52cb23b1e",)),
    (f"{_SAMPLE}.ops.topk_topp_sampler", "TopKTopPSampler.forward_native", ("ec88c18ef884",)),
    (f"{_SAMPLE}.ops.topk_topp_sampler", "apply_top_k_top_p", ("d1f399efb708", "35c9a713c44b")),
    (f"{_SAMPLE}.rejection_sampler", "rejection_sample", ("98d4bc675b01", "bb7eb5cdfed4")),
)
# SplitMix64's constants.
_GOLDEN = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_BITS = 53

_Words = NDArray[np.uint64]


def install(runner: Any, faults: Faults) -> bool:
    """Gives a runner keyed noise. False: it has it, or is not what is known here and stays as it is. Never raises."""
    try:
        if getattr(runner._sample, _MARK, False):
            return False
        unknown = runner_v2.unknown_here(RELIED_ON)
        if getattr(runner, "use_async_scheduling", False) and getattr(runner, "speculative_config", None) is not None:
            unknown.append("drafts under asynchronous scheduling: the host does not know a token's place")
        if unknown:
            faults.add("exact", f"vLLM {settings.vllm_version()}: {'; '.join(unknown)}: seeds hold without drafts only")
            return False
        import torch
        from vllm.v1.sample import rejection_sampler
        from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

        noise = KeyedNoise(runner, faults, torch)
        sampler = runner.sampler.topk_topp_sampler
        sampler.forward = noise.sampling(sampler, apply_top_k_top_p)
        module: Any = rejection_sampler
        module.rejection_sample = noise.verifying(module.rejection_sample)
        runner._sample = noise.stepping(runner._sample)
    except Exception as error:  # noqa: BLE001 - a server that samples by its own numbers is better than none
        faults.add("exact", error)
        return False
    return True


class KeyedNoise:
    """Draws of one runner. Between two calls of its `_sample` nothing is keyed: vLLM's warm-up has no requests."""

    def __init__(self, runner: Any, faults: Faults, torch: Any) -> None:
        self._runner = runner
        self._faults = faults
        self._torch = torch
        self._ids: list[str] = []
        self._seeds: _Words = np.zeros(0, np.uint64)
        self._unseeded = 0
        # Of the step under way: places of the first token drawn for each request, and what is drafted. None: no step.
        self._places: _Words | None = None
        self._drafted: Any = None

    def stepping(self, sample: Callable[..., Any]) -> Callable[..., Any]:
        """In place of the runner's `_sample`."""

        @functools.wraps(sample)
        def keyed(logits: Any, spec_decode_metadata: Any) -> Any:
            self._begin(spec_decode_metadata)
            try:
                return sample(logits, spec_decode_metadata)
            finally:
                self._places = None

        setattr(keyed, _MARK, True)
        return keyed

    def sampling(self, sampler: Any, narrow: Callable[..., Any]) -> Callable[..., Any]:
        """In place of the `forward` of vLLM's sampler: one row for each request, the last of its drafts' rows."""
        original = sampler.forward

        @functools.wraps(original)
        def forward(logits: Any, generators: Any, k: Any, p: Any) -> Any:
            if self._places is None:
                return original(logits, generators, k, p)
            try:
                counts = self._drafted.num_draft_tokens if self._drafted is not None else 0
                keys = row_keys(self._seeds, self._places + np.asarray(counts, np.uint64))
                narrowed = narrow(logits, k, p)
                return self._draw(narrowed, keys), self._reported(narrowed, sampler.logprobs_mode)
            except Exception as error:  # noqa: BLE001 - see above
                self._faults.add("exact", error)
                return original(logits, generators, k, p)

        return forward

    def verifying(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """In place of vLLM's `rejection_sample`; drafts with a distribution, and greedy batches, stay with that."""

        @functools.wraps(original)
        def rejection_sample(*arguments: Any, **options: Any) -> Any:
            draft_probs, target_logits, bonus, metadata = arguments[4:8]
            is_ours = self._places is not None and self._drafted is not None and draft_probs is None
            # Rules of 0.33 that accept more than the model draws (FLy) are vLLM's alone.
            is_plain = not options.get("synthetic_mode") and options.get("fly_window_size") is None
            if is_ours and is_plain and not metadata.all_greedy:
                try:
                    return self._verify(target_logits, bonus, None if metadata.all_random else metadata.temperature)
                except Exception as error:  # noqa: BLE001 - see above
                    self._faults.add("exact", error)
            return original(*arguments, **options)

        return rejection_sample

    def _begin(self, drafted: Any) -> None:
        try:
            batch = self._runner.input_batch
            ids = batch.req_ids
            if ids != self._ids:
                self._meet(ids)
            self._places = batch.num_tokens_no_spec[: len(ids)].astype(np.uint64)
            self._drafted = drafted
            batch.generators.clear()
        except Exception as error:  # noqa: BLE001 - see above
            self._places = None
            self._faults.add("exact", error)

    def _meet(self, ids: list[str]) -> None:
        """Requests came or went, or changed their places."""
        known = dict(zip(self._ids, self._seeds.tolist(), strict=True))
        seeds = [known[one] if one in known else self._seed_of(one) for one in ids]
        self._ids, self._seeds = ids.copy(), np.array(seeds, np.uint64)

    def _seed_of(self, request_id: str) -> int:
        """The same on each rank. A request without a seed gets one that no other has."""
        params = getattr(self._runner.requests.get(request_id), "sampling_params", None)
        extra = getattr(params, "extra_args", None) or {}
        for given in (extra.get("foretoken_seed"), getattr(params, "seed", None)):
            if isinstance(given, int):
                return given & (2**64 - 1)
        self._unseeded += 1
        name = f"{self._unseeded} {request_id}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")

    def _verify(self, logits: Any, bonus: Any, temperature: Any) -> Any:
        """vLLM's output: of each request the tokens that stand, filled with -1."""
        torch, drafted = self._torch, self._drafted
        counts = np.array(drafted.num_draft_tokens, np.int64)
        rows = np.repeat(np.arange(len(counts)), counts)
        steps = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        assert self._places is not None
        keys = row_keys(self._seeds[rows], self._places[rows] + steps.astype(np.uint64))
        drawn = self._draw(logits, keys)
        if temperature is not None:
            is_greedy = temperature[torch.from_numpy(rows).to(temperature.device)] == 0
            drawn = torch.where(is_greedy, logits.argmax(dim=-1), drawn)
        # One row after the other, as the model has them: those of a request's drafts, then the one behind them.
        targets = drafted.target_logits_indices.to(torch.int64)
        all_drawn = torch.empty(len(rows) + len(counts), dtype=torch.int64, device=logits.device)
        inputs = torch.full_like(all_drawn, -1)
        all_drawn[targets] = drawn
        all_drawn[drafted.bonus_logits_indices.to(torch.int64)] = bonus.view(-1).to(torch.int64)
        inputs[targets + 1] = drafted.draft_token_ids.to(torch.int64)
        ends = drafted.cu_num_sampled_tokens
        starts = torch.cat([ends.new_zeros(1), ends])
        sampled, length = accept(all_drawn, inputs, starts, drafted.max_spec_len, torch)
        stands = torch.arange(sampled.shape[1], device=logits.device) < length[:, None]
        return torch.where(stands, sampled, -1).to(torch.int32)

    def _draw(self, logits: Any, keys: NDArray[np.int64]) -> Any:
        if len(keys) != logits.shape[0]:
            raise ValueError(f"{logits.shape[0]} rows of logits, {len(keys)} are known")
        torch = self._torch
        logits, given = logits.to(torch.float32), torch.from_numpy(keys).to(logits.device)
        if logits.device.type == "cpu" and hasattr(torch.ops._C, "fused_gumbel_argmax"):
            # vLLM's own: its noise, too, is a function of a row's number and the token.
            return torch.ops._C.fused_gumbel_argmax(logits, given)
        return torch.argmax(logits + gumbel(given, logits.shape[1], torch), dim=-1)

    def _reported(self, logits: Any, mode: str) -> Any:
        if mode == "processed_logits":
            return logits
        return logits.log_softmax(dim=-1, dtype=self._torch.float32) if mode == "processed_logprobs" else None


def row_keys(seeds: _Words, places: _Words) -> NDArray[np.int64]:
    """64 bits for each (seed, place)."""
    return _mixed(_mixed(seeds) + places * np.uint64(_GOLDEN)).view(np.int64)


def _mixed(words: _Words) -> _Words:
    for shift, factor in _MIX:
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    mixed: _Words = words ^ (words >> np.uint64(_LAST_SHIFT))
    return mixed


def gumbel(keys: Any, vocabulary: int, torch: Any) -> Any:
    """Noise of each token in each row: SplitMix64 of the row's key and the token, by torch's operators alone."""
    tokens = torch.arange(1, vocabulary + 1, device=keys.device, dtype=torch.int64)
    words = keys[:, None] + tokens * _signed(_GOLDEN)
    for shift, factor in _MIX:
        words = (words ^ _shifted(words, shift)) * _signed(factor)
    words = words ^ _shifted(words, _LAST_SHIFT)
    # Near 0, where the likeliest tokens are decided, a float has all its digits.
    uniform = (_shifted(words, 64 - _BITS).to(torch.float32) + 0.5) * 2.0**-_BITS
    return -torch.log(-torch.log1p(-uniform))


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def _shifted(words: Any, bits: int) -> Any:
    """A logical shift of signed words."""
    return (words >> bits) & (2 ** (64 - bits) - 1)
