"""TRL: `VLLMClient` of GRPOTrainer, and the rollout loop and client of AsyncGRPOTrainer.

Weights go by path: TRL's own transfer needs a GPU.
"""

import asyncio
import multiprocessing
import queue
import threading

from accelerate import PartialState
from datasets import Dataset
from driver import MODEL, Driver, check, prompts, run
from transformers import AutoTokenizer
from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop
from trl.experimental.async_grpo.vllm_client import VLLMClient as AsyncVLLMClient
from trl.generation.vllm_client import VLLMClient

SIBLINGS = 4
# TRL knows the templates of published models; that of the bundled one has nothing but content.
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {"content": {"close": "<|end|>", "content": "text"}},
}


async def main(driver: Driver) -> None:
    await asyncio.to_thread(synchronous, driver)
    await asyncio.to_thread(asynchronous, driver)


def synchronous(driver: Driver) -> None:
    client = VLLMClient(base_url=driver.server, connection_timeout=30)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    texts = [f"<|user|>{text}<|assistant|>" for text in prompts("sort", 2)]
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    check(client.get_world_size() > 0, "world size")

    for version in range(2):
        made = client.generate(ids, n=SIBLINGS, temperature=1.0, max_tokens=48, logprobs=0)
        check(made["prompt_ids"] == ids, "prompts come back in order, once each")
        check(len(made["completion_ids"]) == 2 * SIBLINGS, f"{len(made['completion_ids'])} responses")
        for tokens, logprobs in zip(made["completion_ids"], made["logprobs"], strict=True):
            check(len(tokens) == len(logprobs) > 0, f"{len(tokens)} tokens, {len(logprobs)} logprobs")
        before = driver.version
        update(driver, client, driver.weights if version == 0 else str(MODEL))
        check(driver.version != before, f"the version is still {before}")
        client.reset_prefix_cache()
    driver.did(f"VLLMClient.generate: 2 groups of {SIBLINGS}, twice, a weight update after each")

    messages = [[{"role": "user", "content": prompts("total", 1)[0]}]]
    chat = client.chat(messages, n=SIBLINGS, max_tokens=16)
    check(len(chat["completion_ids"]) == SIBLINGS, f"{len(chat['completion_ids'])} chat responses")
    driver.did("VLLMClient.chat")


def update(driver: Driver, client: VLLMClient, folder: str) -> None:
    if driver.engine == "vllm":
        driver.reload(folder)
        return
    client._start_weight_update()
    client._post(f"{client.base_url}/update_weights", json={"update_info": {"weights_path": folder}})
    client._finish_weight_update()


def asynchronous(driver: Driver) -> None:
    """The loop that AsyncGRPOTrainer runs in a process of its own, here in a thread."""
    PartialState(cpu=True)
    client = AsyncVLLMClient(driver.server)
    client.wait_for_server_ready()
    check(client.get_max_model_len() > 0 and "torch." in client.get_dtype(), "server_info")
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.response_template = RESPONSE_TEMPLATE
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in prompts("sort", 4)]
    context = multiprocessing.get_context("spawn")
    buffer, failed, problems = context.Queue(), context.Event(), context.Queue(1)
    version = context.Value("i", 0)
    loop = _AsyncRolloutLoop(
        model_name=driver.model,
        dataset=Dataset.from_list(rows),
        reward_funcs=[lambda completion_ids, **_: [float(len(ids)) for ids in completion_ids]],
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        rollout_buffer=buffer,
        model_version_value=version,
        heartbeat_value=context.Value("d", 0.0),
        failed_event=failed,
        exception_info_queue=problems,
        metrics_queue=context.Queue(),
        num_generations=SIBLINGS,
        max_inflight_tasks=16,
        vllm_server_url=driver.server,
        max_tokens=48,
    )
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    versions: list[int] = []
    for update_ in range(3):
        for _ in range(8):
            try:
                sample = buffer.get(timeout=60)
            except queue.Empty:
                raise AssertionError(f"no sample within 60 s: {problems.get_nowait() if failed.is_set() else ''}") from None
            check(sample.completion_mask.sum() > 0, "a sample without tokens")
            versions.append(sample.model_version)
        client.pause()
        if driver.engine == "llama":
            client.start_weight_update()
            client.update_weights({"weights_path": driver.weights if update_ % 2 == 0 else str(MODEL)})
            client.finish_weight_update()
        else:
            driver.reload(driver.weights if update_ % 2 == 0 else str(MODEL))
        version.value += 1
        client.resume()
    loop._loop.call_soon_threadsafe(loop._stop_event.set)
    thread.join(timeout=60)
    check(not failed.is_set(), "the loop failed")
    driver.reload(MODEL)
    driver.did(f"AsyncGRPO's loop: {len(versions)} samples with seeds of 63 bits, 3 weight updates meanwhile")


run("trl", main)
