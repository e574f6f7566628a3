"""verl: `AgentLoopWorker` over the package's `ForetokenLLMClient`, and a response that an abort cuts in two.

The worker runs in this process; in a trainer Ray starts it in another.
"""

import asyncio
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import verl.trainer
from driver import MODEL, Driver, check, prompts, run
from foretoken_vllm.verl import ForetokenAgentLoopManager, ForetokenLLMClient
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl import DataProto
from verl.experimental.agent_loop import AgentLoopWorker

SIBLINGS = 4
PROMPT_TOKENS, RESPONSE_TOKENS = 128, 256


def configuration(model: Path) -> Any:
    """What a worker reads of verl's configuration."""
    folder = str(Path(verl.trainer.__file__).parent / "config")
    with initialize_config_dir(config_dir=folder, version_base=None):
        config = compose(config_name="ppo_trainer")
    OmegaConf.set_struct(config, False)
    config.actor_rollout_ref.model.path = str(model)
    rollout = config.actor_rollout_ref.rollout
    rollout.name, rollout.mode, rollout.n = "vllm", "async", SIBLINGS
    rollout.prompt_length, rollout.response_length = PROMPT_TOKENS, RESPONSE_TOKENS
    rollout.calculate_log_probs = True
    rollout.agent.num_workers = 1
    rollout.agent.agent_loop_manager_class = "foretoken_vllm.verl.ForetokenAgentLoopManager"
    return config


def tokenizer_only(folder: Path) -> Path:
    """verl takes a qwen3 for one that writes <|im_end|>, which the bundled model does not have."""
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    return folder


async def main(driver: Driver) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        await generate(driver, configuration(tokenizer_only(Path(scratch) / "model")))


async def generate(driver: Driver, config: Any) -> None:
    client = ForetokenLLMClient(config, driver.server)
    check(ForetokenAgentLoopManager.__mro__[1].__name__ == "AgentLoopManager", "the manager is verl's")

    texts = prompts("collatz", 2)
    rows = [[{"role": "user", "content": text}] for text in texts for _ in range(SIBLINGS)]
    batch = DataProto.from_dict(
        non_tensors={
            "raw_prompt": np.array(rows, dtype=object),
            "agent_name": np.array(["single_turn_agent"] * len(rows), dtype=object),
            "priority": np.arange(len(rows), dtype=np.int64),
        },
        meta_info={"validate": False, "global_steps": 1},
    )
    worker = AgentLoopWorker(config, client, None, None)
    output = await worker.generate_sequences(batch)
    lengths = output.batch["response_mask"].sum(dim=1).tolist()
    check(len(lengths) == len(rows) and min(lengths) > 0, f"responses of {lengths} tokens")
    driver.did(f"AgentLoopWorker: {len(texts)} groups of {SIBLINGS}, {sum(lengths)} tokens")

    ids = output.batch["prompts"][0][output.batch["attention_mask"][0][:PROMPT_TOKENS] > 0].tolist()
    sampling = {"temperature": 1.0, "logprobs": True, "ignore_eos": True, "max_tokens": 200}
    whole = asyncio.create_task(client.generate("trajectory", prompt_ids=ids, sampling_params=sampling))
    await driver.until_running()
    await asyncio.to_thread(driver.call, "POST", "/pause?mode=abort&clear_cache=false")
    before = driver.version
    await asyncio.to_thread(driver.reload, driver.weights)
    await asyncio.to_thread(driver.call, "POST", "/resume")
    response = await whole
    check(len(response.token_ids) == len(response.log_probs) == 200, f"{len(response.token_ids)} tokens")
    check(driver.version != before, f"the version is still {before}")
    await asyncio.to_thread(driver.reload, MODEL)
    driver.did("a response aborted by a weight update, continued to its 200 tokens")


run("verl", main)
