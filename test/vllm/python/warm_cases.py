"""What Triton would compile for a rollout's requests that the warm-up did not: names of kernels as JSON.

`cold`: behind the plugin's warm-up; `cold_alone`: behind vLLM's own.

A real engine under Triton's interpreter, which compiles nothing: a kernel counts as compiled with the types of its
arguments, with whether a number is one or a multiple of 16, and with its constants, as Triton has it.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
from triton.runtime import interpreter
from vllm import LLM, SamplingParams
from vllm.v1.worker import gpu_worker

from foretoken_vllm import settings, speculator
from foretoken_vllm.faults import Faults

compiled: set[tuple[Any, ...]] = set()
launch = interpreter.GridExecutor.__call__


def kind(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return str(argument.dtype), argument.data_ptr() % 16 == 0
    if isinstance(argument, int) and not isinstance(argument, bool):
        return argument == 1, argument % 16 == 0
    return argument


def launched(self: Any, *arguments: Any, **options: Any) -> Any:
    given = inspect.signature(self.fn).bind(*arguments, **{k: v for k, v in options.items() if k in self.arg_names})
    kinds = [value if name in self.constexprs else kind(value) for name, value in given.arguments.items()]
    compiled.add((self.fn.__name__, *kinds))
    return launch(self, *arguments, **options)


def main(model: str) -> None:
    features = SamplingParams.for_sampler_warmup()
    # The interpreter cannot run vLLM's kernel for these two.
    features.top_k, features.top_p = 0, 1.0
    SamplingParams.for_sampler_warmup = staticmethod(lambda: features)
    speculator.take_over(Faults())
    llm = LLM(
        model,
        dtype="bfloat16",
        enforce_eager=True,
        distributed_executor_backend="uni",
        block_size=32,
        gpu_memory_utilization=0.2,
        num_gpu_blocks_override=64,
        max_num_seqs=4,
        max_model_len=256,
        speculative_config={
            "method": "ngram_gpu",
            "model": settings.SPECULATOR,
            "num_speculative_tokens": 3,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 1,
        },
        additional_config={"foretoken": {"probability_min": 0.01}},
    )
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    ours = speculator._current
    assert ours is not None
    interpreter.GridExecutor.__call__ = launched
    # The worker of GPUs does so before it captures graphs; that of CPUs does not. First as without the plugin.
    steps = worker.model_runner, worker.execute_model, worker.sample_tokens
    gpu_worker.warmup_kernels.__wrapped__(*steps)
    alone, left_alone = set(compiled), len(ours.drafter.in_flight)
    gpu_worker.warmup_kernels(*steps)
    left, warm = len(ours.drafter.in_flight) + ours.drafter.counters.outside_steps, set(compiled)
    compiled.clear()
    prompts = ["What is 3 + 4?", "What is 3 + 4?", "Say it again."]
    for temperature in (1.0, 0.0, 0.7):
        for logprobs in (0, 1, None):
            asked = SamplingParams(temperature=temperature, logprobs=logprobs, max_tokens=8)
            llm.generate(prompts, asked, use_tqdm=False)
    cold, alone_cold = (sorted({name for name, *_ in compiled - before}) for before in (warm, alone))
    found = {"cold": cold, "cold_alone": alone_cold, "left": left, "left_alone": left_alone}
    print(json.dumps({**found, "drafted": ours.drafter.counters.drafted, "faults": ours.faults.counts}))


main(sys.argv[1])
