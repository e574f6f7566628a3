"""GRPO with TRL through a Foretoken sidecar, on CPU: a real trainer, a real model, real weight updates.

    foretoken serve --llama 2 --model model/foretoken-3m-f16.gguf --port 8000
    pip install -r requirements.txt        # read its head first: CUDA's 5 GB
    python train.py --server http://127.0.0.1:8000 --steps 10

TRL is unmodified but for two methods of its client: its own ones send weights over NCCL, which needs a GPU.
Here they are written to a file whose path is sent instead. On GPUs, with vLLM workers, leave out `PathClient`.
"""

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import trl.generation.vllm_generation as generation
from datasets import Dataset
from rewards import reward
from safetensors.torch import save_file
from sessions import Sessions
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.generation.vllm_client import VLLMClient

ROOT = Path(__file__).resolve().parents[2]


class PathClient(VLLMClient):
    """Hands weights over as a file, and checks that every response was made with the newest ones."""

    updates = 0
    responses = 0
    # Where every step's responses go, as a trace that `foretoken replay` reads; a group's name is STEP/PROMPT.
    record: Path | None = None
    # Where the weights of every step are kept.
    keep: Path | None = None
    groups: list[dict] = []

    def init_communicator(self, device: torch.device | str | int = 0) -> None:
        if self.get_server_info()["weight_transfer_config"] is None:
            raise RuntimeError(f"{self.base_url} takes no weights")

    def update_named_params(
        self,
        metadata: list[tuple[str, str, list[int]]],
        named_params: Iterator[tuple[str, torch.Tensor]],
    ) -> None:
        shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
        with tempfile.NamedTemporaryFile(suffix=".safetensors", dir=shared) as file:
            save_file({name: tensor.detach().contiguous() for name, tensor in named_params}, file.name)
            self._start_weight_update()
            if PathClient.keep is not None:
                shutil.copy(file.name, PathClient.keep / f"step-{PathClient.updates + 1:04}.safetensors")
            info = {"names": [name for name, _, _ in metadata], "weights_path": file.name}
            self._post(f"{self.base_url}/update_weights", json={"update_info": info})
            self._finish_weight_update()
        PathClient.updates += 1

    def _post(self, url: str, **kwargs) -> dict:
        answer = super()._post(url, **kwargs)
        for choice in answer.get("choices", []):
            versions = {span["version"] for span in choice["weight_versions"]}
            if versions != {self.version}:
                raise RuntimeError(f"a response was made with weights {versions}, not {self.version}")
            PathClient.responses += 1
        return answer

    def generate(self, *args, **kwargs) -> dict:
        result = super().generate(*args, **kwargs)
        size = len(result["completion_ids"]) // len(result["prompt_ids"])
        for i, prompt in enumerate(result["prompt_ids"]):
            responses = result["completion_ids"][size * i : size * (i + 1)]
            name = f"step-{PathClient.updates:04}/{'-'.join(map(str, prompt))}"
            PathClient.groups.append({"group": name, "prompt": prompt, "responses": responses})
        if PathClient.record is not None:
            PathClient.record.write_text(json.dumps({"name": "grpo", "groups": PathClient.groups}) + "\n")
        return result

    @property
    def version(self) -> str:
        return self._get(f"{self.base_url}/weight_info")["weight_version"]


def prompts(path: Path, kinds: list[str], limit: int) -> Dataset:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    chosen = [line["prompt"] for line in lines if line["id"].split("-")[0] in kinds]
    return Dataset.from_list([{"prompt": prompt} for prompt in chosen[:limit]])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="http://127.0.0.1:8000", help="where the sidecar listens")
    parser.add_argument("--model", type=Path, default=ROOT / "model" / "hf", help="a Hugging Face directory")
    parser.add_argument("--prompts", type=Path, default=ROOT / "model" / "prompts.jsonl")
    parser.add_argument("--kinds", nargs="+", default=["sort", "total", "collatz"], help="tasks to train on")
    parser.add_argument("--limit", type=int, default=64, help="prompts to take")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--groups", type=int, default=4, help="prompts of one step")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--sessions", action="store_true", help="train on sessions of two chat turns (sessions.py)")
    parser.add_argument("--record", type=Path, help="write the responses of all steps to this file, a trace")
    parser.add_argument("--keep", type=Path, help="keep the weights of every step in this directory")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "grpo")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    generation.VLLMClient = PathClient
    PathClient.record = options.record
    PathClient.keep = options.keep
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=prompts(options.prompts, options.kinds, options.limit),
        rollout_func=Sessions(options.server, options.max_tokens) if options.sessions else None,
        args=GRPOConfig(
            output_dir=str(options.out),
            use_cpu=True,
            bf16=False,
            use_vllm=True,
            vllm_mode="server",
            vllm_server_base_url=options.server,
            max_steps=options.steps,
            num_generations=options.group_size,
            per_device_train_batch_size=options.group_size * options.groups,
            max_completion_length=options.max_tokens,
            learning_rate=options.learning_rate,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            seed=42,
        ),
    )
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    summary = {
        "steps": trainer.state.global_step,
        "weight_updates": PathClient.updates,
        "responses": PathClient.responses,
        "rewards": [round(entry["reward"], 4) for entry in log],
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
