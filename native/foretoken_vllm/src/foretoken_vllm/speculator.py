"""The second model runner's door to the plugin: a speculator whose drafts the device takes from tables (table.py).

Nothing waits for the CPU. The tokens of a step come with the copy that vLLM makes anyway, while the device does the
next step; then the host feeds the core, drafts a tree for each request and writes the tables, and the kernel at the end
of that next step walks them with the tokens just sampled. All but this door is shared with the first runner: requests,
core, link, history, epochs and faults are the proposer's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

from . import exact, runner_v2, settings
from .faults import Faults
from .followers import ODDS, WORDS_BITS, Followers
from .table import ROW_WORDS, Tables
from .table_drafter import TableDrafter
from .walk import walk

# Of the speculative configuration of servers that are the plugin's; its method is `ngram_gpu`.
MODEL = "foretoken_vllm.speculator"
_MARK = "_foretoken_second_runner"
# The process's one; a runner has one speculator.
_current: ForetokenSpeculator | None = None


class ForetokenSpeculator(BaseSpeculator):  # type: ignore[misc]
    """vLLM's speculator; nothing that goes wrong in it leaves it."""

    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, vllm_config: Any, device: Any, req_states: Any) -> None:
        self.req_states = req_states
        self.num_speculative_steps = int(vllm_config.speculative_config.num_speculative_tokens)
        slots = int(vllm_config.scheduler_config.max_num_seqs)
        self._drafts = torch.zeros((slots, self.num_speculative_steps), dtype=torch.int64, device=device)
        # Memory of the host that the device reads.
        self._buffers = buffer_utils.UvaBuffer((2, slots, ROW_WORDS), torch.int32)
        self._selected = buffer_utils.UvaBuffer((1,), torch.int32)
        self._followers = buffer_utils.UvaBuffer((1 << WORDS_BITS,), torch.int32)
        self._odds = torch.tensor(ODDS, dtype=torch.int32, device=device)
        tables = Tables(self._buffers.np, self._selected.np)
        self.drafter = TableDrafter(vllm_config, tables, Followers(self._followers.np))
        self.faults = self.drafter.faults
        self._is_sound = True
        self.is_exact = self.drafter.is_exact
        if self.is_exact:
            _verify_exactly()

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """There is no model of its own."""

    def capture(self) -> None:
        """There is no model of its own."""

    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Any,
        aux_hidden_states: Any,
        num_sampled: Any,
        num_rejected: Any,
        last_sampled: Any,
        *_arguments: Any,
        dummy_run: bool = False,
        **_options: Any,
    ) -> Any:
        requests = input_batch.num_reqs
        drafts = self._drafts[:requests]
        if dummy_run:
            return drafts
        slots = input_batch.idx_mapping[:requests]
        try:
            verified = int(input_batch.num_draft_tokens)
            is_decode = int(input_batch.num_tokens) == requests + verified
            self.drafter.in_flight.append((requests, verified, is_decode))
            if self._is_sound:
                total, tokens = self.req_states.total_len.gpu, self.req_states.all_token_ids.gpu
                last = last_sampled.view(-1)
                tables = self._buffers.uva(), self._selected.uva(), self._followers.uva(), self._odds
                with torch.inference_mode():
                    walk(*tables, slots, total, last, tokens, drafts)
                return drafts
        except Exception as error:  # noqa: BLE001 - one that raises here ends the server
            self._is_sound = False
            self.faults.add("walk", error)
        # Something that the model can read; it is refused like any other.
        drafts.copy_(last_sampled.view(-1)[slots].unsqueeze(1).expand_as(drafts))
        return drafts


def take_over(faults: Faults) -> bool:
    """Puts the speculator in place of vLLM's own n-gram drafts where the server is configured for it. Idempotent."""
    from vllm.v1.worker.gpu import async_utils, model_runner

    if getattr(model_runner.init_speculator, _MARK, False):
        return False
    unknown = runner_v2.unknown_here()
    if unknown:
        faults.add("second runner", f"vLLM {settings.vllm_version()}: {'; '.join(unknown)}: vLLM's own drafts stay")
        return False
    original = model_runner.init_speculator

    @functools.wraps(original)
    def init_speculator(vllm_config: Any, device: Any, req_states: Any) -> Any:
        global _current
        if vllm_config.speculative_config.model != MODEL:
            return original(vllm_config, device, req_states)
        try:
            _current = ForetokenSpeculator(vllm_config, device, req_states)
        except Exception as error:  # noqa: BLE001 - vLLM's own drafts are better than no server
            faults.add("speculator", error)
            return original(vllm_config, device, req_states)
        return _current

    setattr(init_speculator, _MARK, True)
    model_runner.init_speculator = init_speculator
    runner = model_runner.GPUModelRunner
    _keep_seeds(runner, faults)
    _after(runner, "add_requests", _added, faults)
    _after(runner, "_remove_request", _removed, faults)
    _after(runner, "reload_weights", _reloaded, faults)
    _after(async_utils.AsyncOutput, "get_output", _came, faults)
    return True


def _verify_exactly() -> None:
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler

    sampler: Any = rejection_sampler
    if not getattr(sampler.rejection_sample, _MARK, False):
        verifier = exact.verifier(sampler.rejection_sample, gumbel_sample, torch)
        setattr(verifier, _MARK, True)
        sampler.rejection_sample = verifier


def _keep_seeds(runner: Any, faults: Faults) -> None:
    """Where drafts are exact, each chunk of a response is drawn with the response's seed: places are absolute."""
    add_requests = runner.add_requests

    @functools.wraps(add_requests)
    def seeding(self: Any, scheduler_output: Any) -> Any:
        if _current is not None and _current.is_exact:
            try:
                for data in scheduler_output.scheduled_new_reqs:
                    extra = getattr(data.sampling_params, "extra_args", None) or {}
                    if isinstance(seed := extra.get("foretoken_seed"), int):
                        data.sampling_params.seed = seed
            except Exception as error:  # noqa: BLE001 - its own seed is as good a draw
                faults.add("seed", error)
        return add_requests(self, scheduler_output)

    runner.add_requests = seeding


def _after(owner: Any, name: str, act: Callable[..., None], faults: Faults) -> None:
    """Lets `act` see what a method was called with, and what it returned."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def wrapped(self: Any, *arguments: Any, **options: Any) -> Any:
        result = method(self, *arguments, **options)
        if _current is not None:
            try:
                act(_current, self, result, *arguments)
            except Exception as error:  # noqa: BLE001 - what vLLM does is done
                faults.add(name, error)
        return result

    setattr(owner, name, wrapped)


def _added(speculator: ForetokenSpeculator, runner: Any, _result: Any, scheduler_output: Any) -> None:
    drafter = speculator.drafter
    for data in scheduler_output.scheduled_new_reqs:
        slot = runner.req_states.req_id_to_index[data.req_id]
        drafter.tables.clear(slot)
        drafter.news.append(functools.partial(drafter.mirror.add, data.req_id, data, slot))


def _removed(speculator: ForetokenSpeculator, _runner: Any, _result: Any, request_id: str) -> None:
    speculator.drafter.news.append(functools.partial(speculator.drafter.mirror.remove, request_id))


def _reloaded(speculator: ForetokenSpeculator, *_arguments: Any) -> None:
    speculator.drafter.news.append(speculator.drafter.advance)


def _came(speculator: ForetokenSpeculator, _output: Any, result: Any) -> None:
    speculator.drafter.take(result.req_ids, result.sampled_token_ids)
