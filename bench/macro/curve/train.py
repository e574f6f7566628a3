"""One run of the training curve: TRL's GRPOTrainer on the bundled model, its weights in every engine after each step.

With one address all prompts of a step go there in one request; with several they are dealt out in turn, as a trainer
without a sidecar does. TRL is unmodified but for its client's two methods that send weights over NCCL: here they go to
a file whose path is sent.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "examples" / "grpo"))

import trl.generation.vllm_generation as generation  # noqa: E402
from rewards import reward  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from train import prompts  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402
from trl.generation.vllm_client import VLLMClient  # noqa: E402

MODEL = ROOT / "model" / "hf"
LISTS = ("prompt_ids", "completion_ids", "logprobs", "logprob_token_ids")


class CurveClient(VLLMClient):
    """Splits a step over the servers, and times it."""

    servers: list[str] = []
    folder = Path()
    seconds: list[float] = []
    updates = 0

    def init_communicator(self, device: Any = 0) -> None:
        """Weights need no connection."""

    def generate(self, prompts: list[Any], n: int = 1, **options: Any) -> dict[str, Any]:
        began = time.monotonic()
        parts = [list(range(at, len(prompts), len(self.servers))) for at in range(len(self.servers))]
        with ThreadPoolExecutor(len(parts)) as pool:
            made = list(pool.map(lambda at: self._part(at, [prompts[i] for i in parts[at]], n, options), range(len(parts))))
        self.seconds.append(time.monotonic() - began)
        if len(parts) == 1:
            return made[0]
        merged: dict[str, Any] = dict(made[0])
        for name in LISTS:
            if not isinstance(made[0].get(name), list):
                continue
            each = 1 if name == "prompt_ids" else n
            rows: list[Any] = [None] * (len(prompts) * each)
            for at, indices in enumerate(parts):
                for k, index in enumerate(indices):
                    rows[index * each : (index + 1) * each] = made[at][name][k * each : (k + 1) * each]
            merged[name] = rows
        return merged

    def _part(self, at: int, prompts: list[Any], n: int, options: dict[str, Any]) -> dict[str, Any]:
        client = VLLMClient.__new__(VLLMClient)
        client.__dict__.update(self.__dict__)
        client.base_url = self.servers[at]
        return VLLMClient.generate(client, prompts, n=n, **options)

    def update_named_params(self, metadata: Any, named_params: Iterator[tuple[str, torch.Tensor]]) -> None:
        tensors = {name: tensor.detach().contiguous() for name, tensor in named_params}
        save_file(tensors, self.folder / "model.safetensors")
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(self.folder)}}
        for server in self.servers:
            self._post(f"{server}/collective_rpc", json=body)
        CurveClient.updates += 1

    def reset_prefix_cache(self) -> None:
        for server in self.servers:
            self.session.post(f"{server}/reset_prefix_cache").raise_for_status()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", nargs="+", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=256)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    generation.VLLMClient = CurveClient
    CurveClient.servers = [server.rstrip("/") for server in options.servers]
    with tempfile.TemporaryDirectory() as scratch:
        CurveClient.folder = Path(scratch) / "weights"
        shutil.copytree(MODEL, CurveClient.folder)
        torch.manual_seed(options.seed)
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(MODEL),
            reward_funcs=reward,
            train_dataset=prompts(ROOT / "model" / "prompts.jsonl", ["sort", "total", "collatz"], 64),
            args=GRPOConfig(
                output_dir=scratch,
                use_cpu=True,
                bf16=False,
                use_vllm=True,
                vllm_mode="server",
                vllm_server_base_url=CurveClient.servers[0],
                max_steps=options.steps,
                num_generations=options.group_size,
                per_device_train_batch_size=options.group_size * options.groups,
                max_completion_length=options.max_tokens,
                learning_rate=1e-5,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                seed=options.seed,
            ),
        )
        trainer.train()
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    summary = {
        "reward": [entry["reward"] for entry in log],
        "length": [entry["completions/mean_length"] for entry in log],
        "step_s": [entry.get("step_time") for entry in log],
        "generation_s": CurveClient.seconds,
        "weight_updates": CurveClient.updates,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
