"""slime, by its sources (the environment variable SLIME; it is not on PyPI): its rollout function, `SGLangEngine` for an external
engine, and its abort. Names that it imports from sglang, which needs a GPU, are replaced, and packages that are imported
and not used here (ray, pylatexenc); its own code is as it is.
"""

import asyncio
import copy
import sys
import types
from argparse import Namespace
from dataclasses import dataclass
from os import environ

from driver import MODEL, Driver, check, prompts, run
from stand_ins import SglangServerArgs


@dataclass
class ServerArgs(SglangServerArgs):
    """The fields of sglang's that slime reads, or compares with an external engine's."""

    enable_return_routed_experts: bool = False


def replace(name: str, **names: object) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(names)
    sys.modules[name] = module


replace("sglang")
replace("sglang.srt")
replace("sglang.srt.server_args", ServerArgs=ServerArgs)
replace("sglang.srt.utils", kill_process_tree=lambda pid: None)
replace("pylatexenc", latex2text=None)
replace("ray")
sys.path.insert(0, environ["SLIME"])

from slime.backends.sglang_utils.external import (  # noqa: E402
    apply_external_engine_info_to_args,
    external_engine_infos_from_args,
    external_engine_init_kwargs,
)
from slime.backends.sglang_utils.sglang_engine import SGLangEngine  # noqa: E402
from slime.rollout.sglang_rollout import GenerateState, generate_rollout_async  # noqa: E402
from slime.utils.accelerator import set_accelerator  # noqa: E402
from slime.utils.accelerator.cuda import CUDAAccelerator  # noqa: E402
from slime.utils.http_utils import init_http_client  # noqa: E402
from slime.utils.misc import SingletonMeta  # noqa: E402
from slime.utils.types import Sample  # noqa: E402

SIBLINGS = 4


async def reward(args: Namespace, sample: Sample, **kwargs: object) -> float:
    return float(sample.response_length)


def arguments(driver: Driver) -> Namespace:
    host, port = driver.server.removeprefix("http://").split(":")
    args = Namespace(
        hf_checkpoint=str(MODEL), seed=1, ci_test=False, fp16=False, colocate=False, offload_rollout=False, debug_rollout_only=True,
        num_gpus_per_node=8, rollout_num_gpus_per_engine=1, sglang_dp_size=1, sglang_pp_size=1, sglang_ep_size=1,
        rollout_external=True, rollout_external_engine_addrs=[f"{host}:{port}"], sglang_router_ip=host, sglang_router_port=int(port),
        router_policy="consistent_hashing", sglang_server_concurrency=512, use_distributed_post=False,
        sglang_enable_deterministic_inference=True, sglang_speculative_algorithm=None, use_rollout_routing_replay=False,
        rollout_seed=7, rollout_temperature=1.0, rollout_top_p=0.9, rollout_top_k=-1, rollout_max_response_len=48,
        rollout_stop=None, rollout_stop_token_ids=None, rollout_skip_special_tokens=False, n_samples_per_prompt=SIBLINGS,
        rollout_batch_size=2, over_sampling_batch_size=2, rollout_global_dataset=True, partial_rollout=True,
        mask_offpolicy_in_partial_rollout=False, group_rm=False, custom_generate_function_path=None, custom_rm_path=f"{__name__}.reward",
        dynamic_sampling_filter_path=None, rollout_sample_filter_path=None, rollout_all_samples_process_path=None,
        rollout_sample_hook_path=None, reward_key=None, rm_type=None,
    )  # fmt: skip
    apply_external_engine_info_to_args(args)
    return args


def source(count: int, seen: list[list[Sample]]):
    """As slime's data source: as many groups as it asks for, of the bundled prompts."""
    texts = prompts("total", 64)

    def take(groups: int) -> list[list[Sample]]:
        taken = []
        for _ in range(groups):
            text = f"<|user|>{texts[len(seen) % count]}<|assistant|>"
            group = [Sample(group_index=len(seen), index=len(seen) * SIBLINGS + i, prompt=text) for i in range(SIBLINGS)]
            seen.append(group)
            taken.append(group)
        return taken

    return take


class NoGpu(CUDAAccelerator):
    """slime numbers an engine's GPUs by those that it sees itself, also where the engine is elsewhere."""

    def is_available(self) -> bool:
        return True


async def main(driver: Driver) -> None:
    set_accelerator(NoGpu())
    args = arguments(driver)
    init_http_client(args)
    [info] = external_engine_infos_from_args(args)
    engine = SGLangEngine(args, rank=0, worker_type=info.worker_type, base_gpu_id=0, num_gpus_per_engine=info.num_gpus)
    await asyncio.to_thread(engine.init, **external_engine_init_kwargs(info))
    check(info.num_gpus == driver.call("GET", "/get_world_size")["world_size"], f"it counts {info.num_gpus} GPUs")
    driver.did(f"external engine found, compared and registered: {info.num_gpus} GPUs")

    data, aborted = await generate_rollout_async(args, 0, source(2, []))
    for sample in (sample for group in data.samples for sample in group):
        check(sample.status in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED), f"a sample is {sample.status}")
        check(len(sample.rollout_log_probs) == sample.response_length > 0, "logprobs are missing")
        check(sample.weight_versions == [driver.version], f"weights {sample.weight_versions}")
    check(aborted == [], f"{len(aborted)} groups were aborted")
    texts = [[sample.tokens for sample in group] for group in data.samples]
    driver.did(f"generate_rollout: {len(texts)} groups of {SIBLINGS}, top_p 0.9, seeds")

    again, _ = await generate_rollout_async(args, 1, source(2, []))
    check([[sample.tokens for sample in group] for group in again.samples] == texts, "the same seeds gave other tokens")
    driver.did("the same seeds, the same tokens")

    await partial(driver, args)
    await asyncio.to_thread(weights, driver, engine)


async def partial(driver: Driver, args: Namespace) -> None:
    """Its over-sampling: what is not needed is aborted, and continued in the next rollout."""
    long = copy.copy(args)
    long.rollout_batch_size, long.over_sampling_batch_size, long.rollout_max_response_len = 1, 4, 1500
    SingletonMeta._instances.clear()
    state = GenerateState(long)
    state.sampling_params["ignore_eos"] = True
    seen: list[list[Sample]] = []
    take = source(4, seen)

    def uneven(groups: int) -> list[list[Sample]]:
        taken = take(groups)
        # The first group is short, so that the others are aborted.
        for sample in taken[0]:
            sample.generate_function_path = f"{__name__}.generate_short"
        return taken

    _, aborted = await generate_rollout_async(long, 2, uneven)
    cut = [sample for group in aborted for sample in group]
    check(len(cut) == 3 * SIBLINGS, f"{len(cut)} samples came back from the abort")
    check(all(sample.status == Sample.Status.ABORTED for sample in cut), "a sample was not aborted")
    before = {sample.index: (list(sample.tokens), sample.response_length) for sample in cut}
    long.rollout_batch_size, long.rollout_max_response_len = 3, 600
    SingletonMeta._instances.clear()
    GenerateState(long).sampling_params["ignore_eos"] = True
    data, _ = await generate_rollout_async(long, 3, lambda groups: aborted)
    for sample in (sample for group in data.samples for sample in group):
        tokens, length = before[sample.index]
        check(sample.tokens[: len(tokens)] == tokens, "tokens before the abort have changed")
        check(sample.response_length == max(600, length), f"{sample.response_length} of 600 tokens")
        check(len(sample.rollout_log_probs) == sample.response_length, "logprobs are missing")
    driver.did(f"abort of {len(cut)} samples with {sum(length for _, length in before.values())} tokens; all continued to their ends")


async def generate_short(args: Namespace, sample: Sample, sampling_params: dict) -> Sample:
    from slime.rollout.sglang_rollout import generate

    return await generate(args, sample, {**sampling_params, "max_new_tokens": 4})


def weights(driver: Driver, engine: SGLangEngine) -> None:
    check(engine.health_generate(), "not healthy")
    engine.pause_generation()
    engine.flush_cache()
    engine.update_weights_from_disk(driver.weights, weight_version="slime-1")
    engine.post_process_weights()
    engine.continue_generation()
    check(engine.get_weight_version() == "slime-1", f"the version is {engine.get_weight_version()}")
    engine.destroy_weights_update_group("none")
    if driver.engine == "llama":
        engine.release_memory_occupation()
        engine.resume_memory_occupation(tags=["weights"])
        engine.resume_memory_occupation(tags=["kv_cache"])
    driver.did("pause, flush, weights from disk by version, continue, memory")
    driver.reload(MODEL)


if __name__ == "__main__":
    run("slime", main)
