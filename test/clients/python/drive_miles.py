"""miles, by its sources (the environment variable MILES; it is not on PyPI): `InferenceRolloutFn` with over-sampling, its abort
and what continues; `SGLangEngine` for an external engine; the app of its session server. Packages that it imports and
does not use here are replaced (sglang, torch, ray and the like).
"""

import asyncio
import sys
from argparse import Namespace
from dataclasses import dataclass
from os import environ

import httpx
from driver import MODEL, Driver, check, prompts, run
from stand_ins import SglangServerArgs, stand_in_for


@dataclass
class ServerArgs(SglangServerArgs):
    """The fields of sglang's that miles compares with an external engine's."""

    base_gpu_id: int = 0
    gpu_id_step: int = 1


stand_in_for("sglang", "sglang_router", "torch", "ray", "megatron", "pylatexenc", "setproctitle", "uvicorn")
sys.path.insert(0, environ["MILES"])

import sglang.srt.debug_utils.dumper  # noqa: E402
import sglang.srt.server_args  # noqa: E402
import sglang_router  # noqa: E402

sglang_router.__version__ = "0.3.2"
sglang.srt.server_args.ServerArgs = ServerArgs
# Of tensors that are written out for debugging, which is off.
sglang.srt.debug_utils.dumper.DumperConfig._kv_pairs_to_dict = staticmethod(lambda pairs: {})

import miles.utils.processing_utils  # noqa: E402

# It makes further names of models known to transformers, which needs torch.
miles.utils.processing_utils.register_hf_config_aliases = lambda: None

from miles.backends.sglang_utils.sglang_engine import SGLangEngine  # noqa: E402
from miles.rollout.base_types import (  # noqa: E402
    GenerateFnInput,
    GenerateFnOutput,
    RolloutFnConstructorInput,
    RolloutFnTrainInput,
)
from miles.rollout.generate_hub.single_turn import generate  # noqa: E402
from miles.rollout.inference_rollout.inference_rollout_common import InferenceRolloutFn  # noqa: E402
from miles.rollout.session.server import SessionServer  # noqa: E402
from miles.utils.http_utils import init_http_client  # noqa: E402
from miles.utils.types import Sample  # noqa: E402

SIBLINGS = 4


class Arguments(Namespace):
    """miles has some 500 settings; one that is not named here is off."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


async def reward(args: Namespace, sample: Sample, **kwargs: object) -> float:
    return float(sample.response_length)


def arguments(driver: Driver) -> Arguments:
    host, port = driver.server.removeprefix("http://").split(":")
    gpus = driver.call("GET", "/get_world_size")["world_size"]
    return Arguments(
        hf_checkpoint=str(MODEL), seed=1, debug_rollout_only=True, num_gpus_per_node=8, rollout_num_gpus=gpus,
        rollout_num_gpus_per_engine=gpus, eval_num_gpus=0, sglang_dp_size=1, sglang_pp_size=1, sglang_ep_size=1, offload_rollout=False,
        rollout_external=True, rollout_external_engine_addrs=[f"{host}:{port}"], sglang_router_ip=host, sglang_router_port=int(port),
        sglang_router_policy="consistent_hashing", sglang_server_concurrency=512, sglang_enable_deterministic_inference=True,
        use_rollout_routing_replay=False, use_rollout_indexer_replay=False, lora_rank=0, rollout_seed=7, rollout_temperature=1.0,
        rollout_top_p=0.9, rollout_top_k=-1, rollout_max_response_len=48, rollout_skip_special_tokens=False,
        n_samples_per_prompt=SIBLINGS, rollout_batch_size=2, over_sampling_batch_size=2, rollout_global_dataset=True,
        partial_rollout=True, custom_rm_path=f"{__name__}.reward", tito_model="default", session_message_matcher="strict",
        miles_router_timeout=600.0,
    )  # fmt: skip


class Prompts:
    """A data source: groups of the bundled prompts, those first that a rollout gave back."""

    def __init__(self) -> None:
        self.texts = prompts("total", 8)
        self.made = 0
        self.back: list[list[Sample]] = []

    def get_samples(self, count: int) -> list[list[Sample]]:
        return [self.back.pop(0) if self.back else self.group() for _ in range(count)]

    def group(self) -> list[Sample]:
        number = self.made
        self.made += 1
        text = f"<|user|>{self.texts[number % len(self.texts)]}<|assistant|>"
        return [Sample(group_index=number, index=number * SIBLINGS + i, prompt=text) for i in range(SIBLINGS)]

    def add_samples(self, groups: list[list[Sample]]) -> None:
        self.back += groups


async def main(driver: Driver) -> None:
    args = arguments(driver)
    init_http_client(args)
    host, port = args.sglang_router_ip, args.sglang_router_port
    engine = SGLangEngine(args, rank=0, base_gpu_id=0)
    await asyncio.to_thread(engine.init, f"{host}:{port}", port, None, host=host)
    driver.did("external engine found and compared")

    source = Prompts()
    rollout = InferenceRolloutFn(RolloutFnConstructorInput(args=args, data_source=source))
    output = await rollout(RolloutFnTrainInput(rollout_id=0))
    for sample in (sample for group in output.samples for sample in group):
        check(sample.status in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED), f"a sample is {sample.status}")
        check(len(sample.rollout_log_probs) == sample.response_length > 0, "logprobs are missing")
        check(sample.weight_versions == [driver.version], f"weights {sample.weight_versions}")
    driver.did(f"InferenceRolloutFn: {len(output.samples)} groups of {SIBLINGS}, top_p 0.9, seeds")

    await asyncio.gather(*(session(driver, args) for _ in range(SIBLINGS)))
    driver.did(f"session server: {SIBLINGS} agents, 2 turns each")

    await partial(driver, args)
    await asyncio.to_thread(weights, driver, engine)


async def session(driver: Driver, args: Arguments) -> None:
    """An agent's chat, which the session server sends on as tokens, and whose samples it makes."""
    transport = httpx.ASGITransport(app=SessionServer(args, driver.server).app)
    async with httpx.AsyncClient(transport=transport, base_url="http://session", timeout=120) as agent:
        name = (await agent.post("/sessions")).json()["session_id"]
        messages: list = []
        for text in prompts("sort", 2):
            messages.append({"role": "user", "content": text})
            body = {"messages": messages, "max_tokens": 32, "temperature": 1.0}
            answer = await agent.post(f"/sessions/{name}/v1/chat/completions", json=body)
            check(answer.status_code == 200, answer.text)
            messages.append(answer.json()["choices"][0]["message"])
        records = (await agent.get(f"/sessions/{name}")).json()["records"]
        check(len(records) == 2, f"{len(records)} records")
        first, second = records
        meta = first["response"]["choices"][0]["meta_info"]
        before = [*first["request"]["input_ids"], *(one[1] for one in meta["output_token_logprobs"])]
        check(second["request"]["input_ids"][: len(before)] == before, "the second turn does not go on from the first")
        check(meta["weight_version"] == driver.version, f"weights {meta['weight_version']}")


async def partial(driver: Driver, args: Arguments) -> None:
    """Its over-sampling: what is not needed is aborted, and continued in the next rollout."""
    args.rollout_batch_size, args.over_sampling_batch_size, args.rollout_max_response_len = 1, 3, 1200
    source = Prompts()
    rollout = InferenceRolloutFn(RolloutFnConstructorInput(args=args, data_source=source))
    rollout.state.sampling_params["ignore_eos"] = True
    take = source.get_samples

    def uneven(count: int) -> list[list[Sample]]:
        groups = take(count)
        for sample in groups[0]:
            sample.generate_function_path = f"{__name__}.generate_short"
        return groups

    source.get_samples = uneven
    await rollout(RolloutFnTrainInput(rollout_id=1))
    cut = [sample for group in source.back for sample in group]
    check(len(cut) == 2 * SIBLINGS, f"{len(cut)} samples came back from the abort")
    check(all(sample.status == Sample.Status.ABORTED for sample in cut), "a sample was not aborted")
    before = {sample.index: (list(sample.tokens), sample.response_length) for sample in cut}
    source.get_samples = take
    args.rollout_batch_size = args.over_sampling_batch_size = 2
    rollout.state.sampling_params["max_new_tokens"] = 400
    output = await rollout(RolloutFnTrainInput(rollout_id=2))
    for sample in (sample for group in output.samples for sample in group):
        tokens, length = before[sample.index]
        check(sample.tokens[: len(tokens)] == tokens, "tokens before the abort have changed")
        check(sample.response_length == max(400, length), f"{sample.response_length} of 400 tokens")
        check(len(sample.rollout_log_probs) == sample.response_length, "logprobs are missing")
    driver.did(f"abort of {len(cut)} samples with {sum(length for _, length in before.values())} tokens; all continued to their ends")


async def generate_short(input: GenerateFnInput) -> GenerateFnOutput:
    input.sampling_params["max_new_tokens"] = 4
    return await generate(input)


def weights(driver: Driver, engine: SGLangEngine) -> None:
    check(engine.health_generate(), "not healthy")
    engine.pause_generation()
    engine.flush_cache()
    engine.update_weights_from_disk(driver.weights, weight_version="miles-1")
    engine.continue_generation()
    check(engine.get_weight_version() == "miles-1", f"the version is {engine.get_weight_version()}")
    driver.did("pause, flush, weights from disk by version, continue")
    driver.reload(MODEL)


if __name__ == "__main__":
    run("miles", main)
