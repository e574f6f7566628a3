"""The second model runner's door to the plugin: a speculator whose drafts the device takes from tables (table.py).

Nothing waits for the CPU. The tokens of a step come with the copy that vLLM makes anyway, while the device does the
next step; then the host feeds the core, drafts a tree for each request and writes the tables, and the kernel at the end
of that next step walks them with the tokens just sampled. All but this door is shared with the first runner: requests,
core, link, history, epochs and faults are the proposer's.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

from . import abi, exact, graphs, runner_v2, settings
from .faults import Faults
from .table import ODDS, Tables
from .table_drafter import TableDrafter
from .walk import walk

_MARK = "_foretoken_second_runner"
# The process's one; a runner has one speculator.
_current: ForetokenSpeculator | None = None


class ForetokenSpeculator(BaseSpeculator):  # type: ignore[misc]
    """vLLM's speculator; nothing that goes wrong in it leaves it."""

    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, vllm_config: Any, device: Any, req_states: Any) -> None:
        self.req_states = req_states
        self._config = vllm_config
        self.num_speculative_steps = int(vllm_config.speculative_config.num_speculative_tokens)
        slots = int(vllm_config.scheduler_config.max_num_seqs)
        self._drafts = torch.zeros((slots, self.num_speculative_steps), dtype=torch.int64, device=device)
        # vLLM's adaptive verification ranks the drafts of all requests by these, and estimates nothing itself.
        self.draft_token_confidence_probs = torch.zeros_like(self._drafts, dtype=torch.float32)
        self.use_acceptance_estimator = False
        self.enable_adaptive_verification = bool(
            getattr(vllm_config.speculative_config, "enable_adaptive_verification", False)
        )
        self._odds = torch.tensor(ODDS, dtype=torch.int32, device=device)
        self.drafter = TableDrafter(vllm_config)
        # What the device reads of the tables, and of which.
        self._tables: Tables | None = None
        self._views: tuple[Any, Any, Any] = (None, None, None)
        self._map(device)
        self.faults = self.drafter.faults
        self._is_sound = True
        # The graph that was chosen last is a full one: the step's, when its drafts are asked for.
        self.is_graph = False
        self.is_exact = self.drafter.is_exact
        if self.is_exact:
            _verify_exactly()

    def _map(self, device: Any) -> bool:
        """Lets the device read the drafter's tables; others come after a fault. False: there are none."""
        tables = self.drafter.tables
        if tables is not self._tables and tables is not None:
            buffers, area = tables.buffers, mapped(torch.from_numpy(tables.area), device)
            begin, end = abi.TABLE_AREA_WORDS, abi.TABLE_AREA_WORDS + buffers.size
            self._views = area[begin:end].view(buffers.shape), area[:1], area[end:]
            self._tables = tables
        return tables is not None

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """There is no model of its own; but from here on the configuration says what is captured."""
        self.drafter.choose_among(self._lengths())

    def _lengths(self) -> tuple[int, ...]:
        """Numbers of drafts that have graphs."""
        try:
            lengths, problem = graphs.lengths_of(self._config)
            if problem:
                self.faults.add("graphs", problem, level=logging.INFO)
            return lengths
        except Exception as error:  # noqa: BLE001 - the configured number has what vLLM captures without a table
            self.faults.add("graphs", error)
            return (self.num_speculative_steps,)

    def capture(self) -> None:
        """There is no model of its own."""

    def propose(self, input_batch: Any, *_arguments: Any, dummy_run: bool = False, **_options: Any) -> Any:
        drafts = self._drafts[: input_batch.num_reqs]
        if not dummy_run:
            self._end_step(input_batch, drafts, self.draft_token_confidence_probs)
        return drafts

    def _end_step(self, batch: Any, drafts: Any, odds: Any, of_head: int = 0, asked: int = 0, **how: Any) -> None:
        """Tells the drafter of the step, and fills the drafts behind the `asked` tokens of a head.

        `of_head`: of the draft tokens that this step has verified.
        """
        slots, last = batch.idx_mapping[: batch.num_reqs], self.req_states.last_sampled_tokens.view(-1)
        try:
            requests, verified = batch.num_reqs, int(batch.num_draft_tokens)
            is_decode = int(batch.num_tokens) == requests + verified
            self.drafter.launched += 1
            self.drafter.in_flight.append((self.drafter.launched, requests, verified, is_decode, of_head))
            if is_decode:
                counters = self.drafter.counters
                counters.graph_steps += self.is_graph
                counters.outside_steps += not self.is_graph
            if self._is_sound and self._map(drafts.device):
                total, tokens = self.req_states.total_len.gpu, self.req_states.all_token_ids.gpu
                with torch.inference_mode():
                    walk(self._views, self._odds, slots, total, last, tokens, drafts, odds, asked, **how)
                return
        except Exception as error:  # noqa: BLE001 - one that raises here ends the server
            self._is_sound, self.drafter.gives_up = False, True
            self.faults.add("walk", error)
        # Something that the model can read; it is refused like any other.
        drafts[:, asked:] = last[slots].unsqueeze(1)


def mapped(words: Any, device: Any) -> Any:
    """The device's view of memory of the host, which its driver knows for as long as the process lasts.

    Raises RuntimeError where it cannot be.
    """
    if device.type == "cpu":
        return words
    from vllm.utils.torch_utils import get_accelerator_view_from_cpu_tensor

    result = torch.cuda.cudart().cudaHostRegister(words.data_ptr(), words.nbytes, 0)
    # vLLM makes a copy of what is not pinned, which would never change.
    if int(getattr(result, "value", result)) != 0 or not words.is_pinned():
        raise RuntimeError(f"the tables' memory cannot be registered with the device's driver: {result}")
    return get_accelerator_view_from_cpu_tensor(words)


def take_over(faults: Faults) -> bool:
    """Puts the speculator in place of vLLM's n-gram drafts, or beside a head where that is asked for. Idempotent."""
    from vllm.v1.worker.gpu import async_utils, cudagraph_utils, model_runner

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
        if vllm_config.speculative_config.model != settings.SPECULATOR:
            head = original(vllm_config, device, req_states)
            _current = _beside(head, vllm_config, device, req_states, faults)
            return head
        if vllm_config.parallel_config.tensor_parallel_size > 1:
            # Each rank takes the drafts that it has made itself, and only one is given the tokens of a step.
            faults.add("tensor parallel", "its ranks would draft differently: vLLM's own drafts stay")
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
    _warm_up_as_rollouts_sample(faults)
    _after(runner, "add_requests", _added, faults)
    _after(runner, "_remove_request", _removed, faults)
    _after(runner, "reload_weights", _reloaded, faults)
    _after(async_utils.AsyncOutput, "get_output", _came, faults)
    _after(cudagraph_utils.CudaGraphManager, "dispatch", _dispatched, faults)
    return True


def _beside(head: Any, vllm_config: Any, device: Any, req_states: Any, faults: Faults) -> ForetokenSpeculator | None:
    """None: nobody asked for it, or the head drafts alone for another reason."""
    try:
        problem = runner_v2.beside_problem(vllm_config)
        if problem == "":
            from .beside import Beside

            return Beside(head, vllm_config, device, req_states)
        if problem is not None:
            faults.add("beside", f"the head drafts alone: {problem}")
    except Exception as error:  # noqa: BLE001 - the head needs none of it
        faults.add("beside", error)
    return None


def _warm_up_as_rollouts_sample(faults: Faults) -> None:
    """vLLM's warm-up samples with every feature on; for plain logits and few logprobs Triton compiles other kernels.

    Every worker does the same, whether it has the speculator or not: steps of several workers wait for each other.
    """
    from vllm import SamplingParams
    from vllm.v1.worker import gpu_worker

    original, features = gpu_worker.warmup_kernels, SamplingParams.for_sampler_warmup
    plain = [functools.partial(SamplingParams, temperature=t, logprobs=n) for t in (1.0, 0.9) for n in (0, 1)]

    @functools.wraps(original)
    def warmup_kernels(runner: Any, *step: Any) -> None:
        original(runner, *step)
        try:
            for made in plain if runner_v2.has_tables(runner.vllm_config) else []:
                SamplingParams.for_sampler_warmup = staticmethod(made)
                original(runner, *step)
        except Exception as error:  # noqa: BLE001 - kernels are then compiled while serving
            faults.add("warm-up", error)
        SamplingParams.for_sampler_warmup = staticmethod(features)
        if _current is not None:
            # vLLM does not read the output of these steps, and none of them has a graph yet.
            _current.drafter.in_flight.clear()
            _current.drafter.counters.outside_steps = 0

    gpu_worker.warmup_kernels = warmup_kernels


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
    drafter, tables = speculator.drafter, speculator.drafter.tables
    # Without tables nobody reads the news.
    if tables is None:
        return
    for data in scheduler_output.scheduled_new_reqs:
        slot = runner.req_states.req_id_to_index[data.req_id]
        tables.clear(slot)
        drafter.news.append(functools.partial(drafter.mirror.add, data.req_id, data, slot, drafter.launched + 1))


def _removed(speculator: ForetokenSpeculator, _runner: Any, _result: Any, request_id: str) -> None:
    if speculator.drafter.tables is not None:
        speculator.drafter.news.append(functools.partial(speculator.drafter.mirror.remove, request_id))


def _reloaded(speculator: ForetokenSpeculator, *_arguments: Any) -> None:
    speculator.drafter.news.append(speculator.drafter.advance)


def _dispatched(speculator: ForetokenSpeculator, _manager: Any, graph: Any, *_arguments: Any) -> None:
    speculator.is_graph = graph.cg_mode.name == "FULL"


def _came(speculator: ForetokenSpeculator, output: Any, result: Any) -> None:
    speculator.drafter.take(result.req_ids, output.sampled_token_ids, output.num_sampled_tokens_np)
