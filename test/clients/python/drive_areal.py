"""AReaL: `RemotevLLMEngine` and `RLVRWorkflow`, with weights by its disk protocol and its pause, which is an abort."""

import asyncio
import tempfile
import time
import uuid

from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig, NameResolveConfig
from areal.api.io_struct import ModelRequest, WeightUpdateMeta
from areal.engine.vllm_remote import RemotevLLMEngine
from areal.utils import name_resolve, names
from driver import MODEL, Driver, check, prompts, run
from transformers import AutoTokenizer

SIBLINGS = 4
GENERATION = GenerationHyperparameters(n_samples=1, max_new_tokens=64, temperature=1.0)


async def main(driver: Driver) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    config = InferenceEngineConfig(
        experiment_name="foretoken", trial_name=uuid.uuid4().hex[:8], backend="vllm:d1", max_concurrent_rollouts=16, consumer_batch_size=2
    )
    with tempfile.TemporaryDirectory() as folder:
        config.fileroot = folder
        name_resolve.reconfigure(NameResolveConfig(type="nfs", nfs_record_root=folder))
        engine = RemotevLLMEngine(config)
        address = driver.server.removeprefix("http://")
        await asyncio.to_thread(engine.initialize, addr=address)
        try:
            await control(driver, engine, tokenizer)
        finally:
            await asyncio.to_thread(engine.destroy)


def request(tokenizer: AutoTokenizer, text: str, tokens: int = 64) -> ModelRequest:
    ids = tokenizer.encode(f"<|user|>{text}<|assistant|>", add_special_tokens=False)
    generation = GENERATION.new(max_new_tokens=tokens, ignore_eos=tokens > 64)
    return ModelRequest(rid=uuid.uuid4().hex, input_ids=ids, gconfig=generation, tokenizer=tokenizer)


async def control(driver: Driver, engine: RemotevLLMEngine, tokenizer: AutoTokenizer) -> None:
    text = prompts("total", 1)[0]
    group = await asyncio.gather(*(engine.agenerate(request(tokenizer, text)) for _ in range(SIBLINGS)))
    for response in group:
        check(len(response.output_tokens) == len(response.output_logprobs) > 0, "logprobs are missing")
    driver.did(f"agenerate: {SIBLINGS} siblings, {sum(len(r.output_tokens) for r in group)} tokens")

    long = [asyncio.create_task(engine.agenerate(request(tokenizer, text, 400))) for _ in range(2)]
    await driver.until_running()
    before = driver.version
    await asyncio.to_thread(engine.pause_generation)
    # The trainer's engine says so when it has written the checkpoint.
    written = names.update_weights_from_disk(engine.config.experiment_name, engine.config.trial_name, engine.get_version())
    name_resolve.add(written, str(time.time()), keepalive_ttl=120)
    meta = WeightUpdateMeta(type="disk", path=driver.weights, clear_checkpoint_after_load=False)
    await asyncio.to_thread(lambda: engine.update_weights_from_disk(meta).result(timeout=120))
    engine.set_version(1)
    await asyncio.to_thread(engine.continue_generation)
    responses = await asyncio.gather(*long)
    check(driver.version != before, f"the version is still {before}")
    for response in responses:
        check(len(response.output_tokens) == 400, f"{len(response.output_tokens)} of 400 tokens")
    driver.did("pause (an abort), weights from disk, continue: both responses whole")
    await asyncio.to_thread(driver.reload, MODEL)


run("areal", main)
