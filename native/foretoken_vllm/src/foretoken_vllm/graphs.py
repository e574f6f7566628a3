"""Which numbers of draft tokens a step may have without leaving vLLM's full CUDA graphs.

The second runner captures a graph for each capture size and each number of drafts that the speculative configuration
names, and a step runs in one only if the smallest size that holds it has a graph of the step's own number: sizes and
numbers must fit each other. Nothing of that rule is restated here: vLLM's own manager lists what it will capture, and
is asked, as at every step, which graph it takes for each batch. That needs no GPU.
"""

from __future__ import annotations

from typing import Any

from . import settings


def ladder(longest: int) -> tuple[int, ...]:
    """0, 1, 3, 7, ... below `longest`, and that one: their rows 1, 2, 4, 8, ... divide the same capture sizes."""
    lengths, length = [], 0
    while length < longest:
        lengths.append(length)
        length = 2 * length + 1
    return (*lengths, longest)


def lengths_of(config: Any) -> tuple[tuple[int, ...], str]:
    """Ascending, the configured number among them; and what the server's flags forbid, if they do.

    `config` is vLLM's. The mode of its graphs is final once the runner knows its attention.
    """
    longest = int(config.speculative_config.num_speculative_tokens)
    parallel = config.parallel_config
    if getattr(parallel, "data_parallel_size", 1) > 1:
        return (longest,), f"the ranks of --data-parallel-size must draft the same number: always {longest}"
    if settings.is_cpu():
        return ladder(longest), ""
    if not config.compilation_config.cudagraph_mode.has_full_cudagraphs():
        return ladder(longest), "no step runs in a full CUDA graph (--enforce-eager, cudagraph_mode, or the attention)"
    requests = int(config.scheduler_config.max_num_seqs)
    manager = _manager(config, longest)
    whole = [_batches(manager, length, requests) for length in range(longest + 1)]
    lengths = (*(length for length in range(longest) if whole[length] == requests), longest)
    lacking = [f"{length} beyond {whole[length]}" for length in ladder(longest) if whole[length] < requests]
    if lacking:
        problem = f"of up to {requests} requests, draft lengths without a CUDA graph: {', '.join(lacking)}"
        return lengths, f"{problem}; `foretoken up --plugin` names capture sizes and lengths that fit"
    executor = getattr(parallel, "distributed_executor_backend", "uni")
    return lengths, "" if executor == "uni" else f"executor {executor}: the scheduler is elsewhere, always {longest}"


def _manager(config: Any, longest: int) -> Any:
    """vLLM's, as the runner makes it, without what it captures into."""
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
    from vllm.v1.worker.gpu.lora_utils import get_lora_capture_cases

    manager = CudaGraphManager.__new__(CudaGraphManager)
    manager.vllm_config = config
    manager.compilation_config = config.compilation_config
    manager.cudagraph_mode = config.compilation_config.cudagraph_mode
    manager.max_num_reqs = config.scheduler_config.max_num_seqs
    manager.decode_query_len = longest + 1
    manager.lora_capture_cases = get_lora_capture_cases(getattr(config, "lora_config", None), config.compilation_config)
    manager._lora_dispatch_map, manager._max_lora_case = manager._build_lora_dispatch_map()
    adaptive = getattr(config.speculative_config, "enable_adaptive_verification", False)
    manager.varlen_decode, manager.ubatch_runner = bool(adaptive), None
    manager._candidates, manager._capture_descs = {}, {}
    manager._init_candidates()
    manager._graphs_captured = True
    return manager


def _batches(manager: Any, length: int, requests_max: int) -> int:
    """Requests up to which every batch with as many drafts runs in a full graph, whatever adapters it has."""
    rows = length + 1
    for requests in range(1, requests_max + 1):
        for adapters in manager.lora_capture_cases:
            found = manager.dispatch(requests, requests * rows, rows, adapters, rows)
            if found.cg_mode.name != "FULL":
                return requests - 1
    return requests_max
