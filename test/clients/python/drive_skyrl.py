"""SkyRL: `RemoteInferenceClient` with the sidecar as its router and its only server, and `SkyrlWeightSyncClient`.

SkyRL's modules import torch for types that this path does not use: a module of the same name stands in for it.
"""

import asyncio
import sys
from types import ModuleType


class _Anything(type):
    def __getattr__(cls, name: str) -> type:
        return _Anything(name, (), {})


def _stand_in_for_torch() -> None:
    torch = ModuleType("torch")
    torch.__getattr__ = lambda name: _Anything(name, (), {})  # type: ignore[method-assign]
    torch.__path__ = []
    torch.nn = ModuleType("torch.nn")
    torch.nn.__path__ = []
    torch.nn.functional = ModuleType("torch.nn.functional")
    torch.distributed = ModuleType("torch.distributed")
    for module in (torch, torch.nn, torch.nn.functional, torch.distributed):
        sys.modules[module.__name__] = module


try:
    import torch  # noqa: F401
except ImportError:
    _stand_in_for_torch()

from driver import MODEL, Driver, check, prompts, run  # noqa: E402
from skyrl.backends.skyrl_train.inference_servers.base import InferenceEngineInput  # noqa: E402
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (  # noqa: E402
    RemoteInferenceClient,
)
from skyrl.backends.skyrl_train.weight_sync.control_plane import SkyrlWeightSyncClient  # noqa: E402

SIBLINGS = 8
TOP_K = 4
SAMPLING = {"temperature": 1.0, "max_tokens": 64, "logprobs": 0}


async def main(driver: Driver) -> None:
    client = RemoteInferenceClient(
        proxy_url=driver.server,
        server_urls=[driver.server],
        data_parallel_size=1,
        model_name=driver.model,
    )
    text = f"<|user|>{prompts('total', 1)[0]}<|assistant|>"
    [prompt] = await client.tokenize([text], add_special_tokens=False)
    end = (await client.tokenize(["<|end|>"], add_special_tokens=False))[0][-1]
    sampling = {**SAMPLING, "stop_token_ids": [end]}

    await generation(driver, client, prompt, sampling)
    await lifecycle(driver, client, prompt, sampling)
    await sync(driver, client, prompt, sampling)
    await client.teardown()


async def generation(driver: Driver, client: RemoteInferenceClient, prompt: list[int], sampling: dict) -> None:
    batch = InferenceEngineInput(
        prompt_token_ids=[prompt] * SIBLINGS,
        sampling_params=sampling,
        session_ids=[f"trajectory-{index}" for index in range(SIBLINGS)],
        cache_salt="0",
    )
    output = await client.generate(batch, model=driver.model)
    for ids, logprobs in zip(output["response_ids"], output["response_logprobs"], strict=True):
        check(len(ids) == len(logprobs) > 0, f"{len(ids)} tokens, {len(logprobs)} logprobs")
    driver.did(f"generate: {SIBLINGS} siblings, {sum(map(len, output['response_ids']))} tokens with logprobs")

    second = [*prompt, *output["response_ids"][0]]
    batch["prompt_token_ids"], batch["session_ids"] = [second], ["trajectory-0"]
    turn = await client.generate(batch, model=driver.model)
    check(len(turn["response_ids"][0]) > 0, "the second turn is empty")
    for index in range(SIBLINGS):
        await client.finish_session(f"trajectory-{index}")
    driver.did("a second turn of a session, then finish_session")

    sample = await client.sample(
        {
            "json": {
                "prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]},
                "num_samples": 4,
                "sampling_params": {"temperature": 1.0, "max_tokens": 32, "seed": 3, "stop_tokens": sampling["stop_token_ids"]},
            }
        }
    )
    check([len(one["tokens"]) for one in sample["sequences"]] == [len(one["logprobs"]) for one in sample["sequences"]], "logprobs")
    check(len(sample["sequences"]) == 4, f"{len(sample['sequences'])} samples, not 4")
    driver.did("sample (Tinker): 4 sequences of one request")

    messages = [{"role": "user", "content": prompts("sort", 1)[0]}]
    chat = await client.chat_completion({"json": {"messages": messages, "max_tokens": 16, "session_id": "chat"}})
    check(chat["choices"][0]["finish_reason"] in ("stop", "length"), "chat")
    rendered = await client.render_chat_completion({"json": {"messages": messages}})
    check(len(rendered["token_ids"]) > 0, "nothing was rendered")
    driver.did("chat_completion and render_chat_completion")

    client.enable_return_sample_support_set = True
    supported = await client.generate(
        InferenceEngineInput(
            prompt_token_ids=[prompt] * 2,
            sampling_params={**sampling, "top_k": TOP_K, "top_p": 0.9},
            return_sample_support=True,
        ),
        model=driver.model,
    )
    client.enable_return_sample_support_set = False
    for ids, support in zip(supported["response_ids"], supported["rollout_sample_support"], strict=True):
        check(support.shape == (len(ids), TOP_K), f"support of {support.shape} for {len(ids)} tokens")
        check(all(token in row for token, row in zip(ids, support.tolist(), strict=True)), "a token is not in its support")
    driver.did(f"/skyrl/v1/generate: the {TOP_K} tokens from which each was drawn, packed")


async def lifecycle(driver: Driver, client: RemoteInferenceClient, prompt: list[int], sampling: dict) -> None:
    total, each = await client.get_world_size()
    check(total == each > 0, f"world size {total}, {each} for each server")
    long = {**sampling, "max_tokens": 512, "ignore_eos": True, "stop_token_ids": []}
    batch = InferenceEngineInput(prompt_token_ids=[prompt] * 4, sampling_params=long)

    kept = asyncio.create_task(client.generate(batch, model=driver.model))
    await driver.until_running()
    await client.pause(mode="keep")
    await client.resume()
    lengths = [len(ids) for ids in (await kept)["response_ids"]]
    check(lengths == [512] * 4, f"after pause and resume {lengths} tokens")
    driver.did("pause with keep, resume: all 4 responses whole")

    ended = asyncio.create_task(client.generate(batch, model=driver.model))
    await driver.until_running()
    await client.pause(mode="abort")
    reasons = (await ended)["stop_reasons"]
    await client.resume()
    check(set(reasons) <= {"abort", "length"}, f"aborted responses ended with {reasons}")
    driver.did(f"pause with abort: {reasons.count('abort')} of 4 ended as they stood")

    if driver.engine == "llama":
        await client.sleep(level=1)
        check(await client.is_sleeping(), "not asleep")
        await client.wake_up()
        check(not await client.is_sleeping(), "still asleep")
        driver.did("sleep and wake_up")
    await client.reset_prefix_cache(reset_running_requests=True)


async def sync(driver: Driver, client: RemoteInferenceClient, prompt: list[int], sampling: dict) -> None:
    before = driver.version
    weights = SkyrlWeightSyncClient([driver.server])

    def update(folder: str, version: str) -> None:
        weights.pause_generation(clear_cache=False)
        if driver.engine == "llama":
            weights.start_weight_update()
            weights.update_weights({"weights_path": folder})
            weights.finish_weight_update(weight_version=version)
        else:
            driver.reload(folder)
        weights.reset_prefix_cache()
        weights.resume_generation()

    for round_ in range(3):
        batch = InferenceEngineInput(prompt_token_ids=[prompt] * 4, sampling_params=sampling)
        running = asyncio.create_task(client.generate(batch, model=driver.model))
        await asyncio.to_thread(update, driver.weights, f"skyrl-{round_}")
        client.increment_weight_version()
        output = await running
        check(all(len(ids) > 0 for ids in output["response_ids"]), "an empty response")
        check(driver.version != before, f"the version is still {before}")
        before = driver.version
    await asyncio.to_thread(update, str(MODEL), "skyrl-end")
    weights.close()
    driver.did("SkyrlWeightSyncClient: 4 weight updates with requests in flight")


run("skyrl", main)
