"""Which steps leave vLLM's full CUDA graphs, for servers with given flags? Asked of vLLM's own code, without a GPU.

`graph_cases.py VERSION FLAGS...` prints JSON of each FLAGS (a JSON list of vLLM's arguments). VERSION "here" is the
installed vLLM; of another one the manager of CUDA graphs is read out of its wheel on pip's index.
"""

from __future__ import annotations
import __future__

import argparse
import ast
import functools
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import vllm.v1.worker.gpu.cudagraph_utils as vllm_graphs
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.spec_decode.dynamic import utils as tables
from wheel_sources import extract

from foretoken_vllm import engine, graphs, padding, settings
from foretoken_vllm.faults import Faults
from foretoken_vllm.length import LengthBudget

MANAGER = "vllm/v1/worker/gpu/cudagraph_utils.py"
TABLES = "vllm/v1/spec_decode/dynamic/utils.py"
OF_MANAGER = ("BatchExecutionDescriptor", "_is_compatible", "CudaGraphManager")


def main(version: str, cases: list[str]) -> None:
    settings.is_cpu = lambda: False
    if version != "here":
        with tempfile.TemporaryDirectory() as folder:
            extract(version, {MANAGER, TABLES}, folder)
            replace(vllm_graphs, Path(folder, MANAGER), OF_MANAGER)
            replace(tables, Path(folder, TABLES), ("build_dynamic_sd_schedule_lookup",))
    print(json.dumps([asked(configuration(json.loads(case))) for case in cases]))


def replace(module: Any, source: Path, names: tuple[str, ...]) -> None:
    """By the definitions of another version; whatever else they name is this version's."""
    body = [one for one in ast.parse(source.read_text()).body if getattr(one, "name", None) in names]
    if len(body) != len(names):
        raise SystemExit(f"{source} lacks one of {names}")
    flags = __future__.annotations.compiler_flag
    exec(compile(ast.Module(body, []), str(source), "exec", flags), module.__dict__)


def configuration(flags: list[str]) -> Any:
    """What a VllmConfig of a GPU has, as far as graphs depend on it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--speculative-config", type=json.loads)
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--cudagraph-capture-sizes", type=int, nargs="+")
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--max-loras", type=int)
    parser.add_argument("--data-parallel-size", type=int, default=1)
    parser.add_argument("--distributed-executor-backend", default="uni")
    given, _ = parser.parse_known_args(flags)
    drafting = given.speculative_config
    table = drafting.get("num_speculative_tokens_per_batch_size")
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            model=drafting["model"],
            num_speculative_tokens=drafting["num_speculative_tokens"],
            num_speculative_tokens_per_batch_size=table,
            enable_adaptive_verification=drafting.get("enable_adaptive_verification", False),
            uses_dynamic_speculative_decoding=lambda: table is not None,
        ),
        num_speculative_tokens=drafting["num_speculative_tokens"],
        scheduler_config=SimpleNamespace(max_num_seqs=given.max_num_seqs),
        parallel_config=SimpleNamespace(
            data_parallel_size=given.data_parallel_size,
            distributed_executor_backend=given.distributed_executor_backend,
            tensor_parallel_size=1,
        ),
        cache_config=SimpleNamespace(use_kda_recoverssm=False),
        lora_config=given.max_loras and SimpleNamespace(max_loras=given.max_loras),
        compilation_config=SimpleNamespace(
            cudagraph_mode=CUDAGraphMode.NONE if given.enforce_eager else CUDAGraphMode.FULL_AND_PIECEWISE,
            cudagraph_specialize_lora=True,
            cudagraph_capture_sizes=given.cudagraph_capture_sizes,
            max_cudagraph_capture_size=max(given.cudagraph_capture_sizes),
        ),
    )


def asked(config: Any) -> dict[str, Any]:
    lengths, problem = graphs.lengths_of(config)
    manager = made(config)
    longest = config.num_speculative_tokens
    return {
        "lengths": lengths,
        "problem": problem,
        "chosen": (chosen := sorted(choices(lengths))),
        "outside": [length for length in chosen if leaves(manager, config, length)],
        "others_outside": [n for n in range(longest) if n not in lengths and leaves(manager, config, n)],
        "captured": {mode.name: len(of) for mode, of in manager._capture_descs.items()},
        "without_plugin": static(config),
        "lookup": lookup(config),
    }


def made(config: Any) -> Any:
    """The manager, by its own constructor."""
    rank = SimpleNamespace(is_first_rank=True, is_last_rank=True)
    platform = SimpleNamespace(get_global_graph_pool=lambda: None)
    mode, drafts = config.compilation_config.cudagraph_mode, config.num_speculative_tokens
    varlen = config.speculative_config.enable_adaptive_verification
    with (
        patch.object(vllm_graphs, "get_pp_group", lambda: rank),
        patch.object(vllm_graphs, "current_platform", platform),
        patch.object(vllm_graphs, "is_breakable_cudagraph_enabled", lambda: False),
    ):
        return vllm_graphs.CudaGraphManager(config, torch.device("cpu"), mode, drafts + 1, varlen_decode=varlen)


def leaves(manager: Any, config: Any, length: int) -> bool:
    """Whether there is a batch of requests with as many drafts whose step runs in no full graph."""
    manager._graphs_captured, rows = True, length + 1
    batches = range(1, config.scheduler_config.max_num_seqs + 1)
    found = [manager.dispatch(requests, requests * rows, rows, 0, rows) for requests in batches]
    return any(one.cg_mode != CUDAGraphMode.FULL for one in found)


@functools.cache
def choices(lengths: tuple[int, ...]) -> set[int]:
    """The controller's, at many batches, costs and odds."""
    found: set[int] = set()
    for requests in (1, 16, 256):
        for row_us in (0.1, 200.0, 2000.0):
            for right in (0, 1, 3, 7):
                budget = LengthBudget(lengths, Faults())
                for _ in range(400):
                    length = budget.choose(requests, requests)
                    found.add(length)
                    budget.observe(requests, requests * length, 5000 + row_us * requests * length)
                    budget.accept(length, min(length, right))
                    budget.learn()
                for allowed in (0, 2 * requests, 5 * requests):
                    budget.allowed = allowed
                    found.add(budget.choose(requests, requests))
                found.add(budget.choose(requests, 0))
    return found


def static(config: Any) -> list[int] | None:
    """Drafts by the size of the batch, where no plugin is in the scheduler's process."""
    table = config.speculative_config.num_speculative_tokens_per_batch_size
    slots, longest = config.scheduler_config.max_num_seqs, config.num_speculative_tokens
    return table and tables.build_dynamic_sd_schedule_lookup(table, slots, longest)


def lookup(config: Any) -> list[list[int] | None]:
    """The scheduler's table when it is made, and when it was told that the longest and that a shorter one is wanted."""
    scheduler = SimpleNamespace(
        vllm_config=config,
        scheduler_config=config.scheduler_config,
        num_spec_tokens=config.num_speculative_tokens,
        dynamic_sd_lookup=static(config),
    )
    engine.scheduler = lambda: scheduler
    faults = Faults()
    padding.fit(scheduler, faults)
    found = [scheduler.dynamic_sd_lookup]
    budget = LengthBudget((1, config.num_speculative_tokens), faults)
    for length in (config.num_speculative_tokens, 1, config.num_speculative_tokens):
        budget.length = length
        budget.apply()
        found.append(scheduler.dynamic_sd_lookup and scheduler.dynamic_sd_lookup[:2])
    if faults.counts:
        raise SystemExit(f"faults: {faults.counts}")
    return found


main(sys.argv[1], sys.argv[2:])
