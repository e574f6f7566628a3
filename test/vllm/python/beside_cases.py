"""Beside a head, on a real engine under Triton's interpreter: `beside_cases.py MODEL FOLDER` prints figures as JSON.

Its heads are made in FOLDER if they are not there: a weakened copy of the model, and a layer of EAGLE-3 that was never
trained.
With `exact` each token is drawn by noise that depends on the response's seed and the place, so that all engines must draw
the same: without drafts, with the head alone, beside it with and without siblings, and after a fault.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
from safetensors.torch import save_file
from vllm import LLM, SamplingParams
from vllm.v1.worker.gpu import model_runner

from foretoken_vllm import speculator
from foretoken_vllm.faults import Faults
from foretoken_vllm.widen import Widened

METHODS = ("draft_model", "eagle3")
DRAFTS = 4
SAMPLES = 3
PROMPTS = ("What is 3 + 4?",)
TOKENS = 24


# Of the weakened copy's projections: it is right about half of the time.
NOISE = 0.9
# Layers of the model that the EAGLE-3 layer reads.
READ = (1, 2, 3)


def make(method: str, model: Path, out: Path) -> None:
    sizes = json.loads((model / "config.json").read_text())
    if method == "draft_model":
        Widened(model, sizes["hidden_size"], sizes["num_hidden_layers"], noise=NOISE).write(out)
        return
    hidden, channels, width = sizes["hidden_size"], sizes["intermediate_size"], sizes["num_attention_heads"] * 64
    kv, layer = sizes["num_key_value_heads"] * 64, "midlayer."
    shapes = {"fc": (hidden, len(READ) * hidden), f"{layer}self_attn.q_proj": (width, 2 * hidden)}
    shapes |= {f"{layer}self_attn.{name}_proj": (kv, 2 * hidden) for name in "kv"}
    shapes |= {f"{layer}self_attn.o_proj": (hidden, width), f"{layer}mlp.down_proj": (hidden, channels)}
    shapes |= {f"{layer}mlp.{name}_proj": (channels, hidden) for name in ("gate", "up")}
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    shapes |= {f"{layer}{name}": (hidden,) for name in norms} | {"norm": (hidden,)}
    shapes |= {f"{layer}self_attn.{name}_norm": (64,) for name in "qk"}
    noise = torch.Generator().manual_seed(1)
    made = {name: torch.randn(shape, generator=noise) * 0.02 + (len(shape) == 1) for name, shape in shapes.items()}
    own = {"architectures": ["Eagle3Qwen3ForCausalLM"], "draft_vocab_size": sizes["vocab_size"], "dtype": "float32"}
    own |= {"num_hidden_layers": 1, "layer_types": ["full_attention"], "tie_word_embeddings": False}
    own |= {"eagle_aux_hidden_state_layer_ids": list(READ)}
    out.mkdir(parents=True)
    save_file({f"{name}.weight": tensor for name, tensor in made.items()}, out / "model.safetensors")
    (out / "config.json").write_text(json.dumps({**sizes, **own}))


def engine(model: str, head: dict[str, Any] | None, own: dict[str, Any]) -> LLM:
    return LLM(
        model,
        dtype="float32",
        enforce_eager=True,
        distributed_executor_backend="uni",
        block_size=32,
        gpu_memory_utilization=0.2,
        num_gpu_blocks_override=128,
        max_num_seqs=SAMPLES,
        max_model_len=256,
        speculative_config=head,
        additional_config={"foretoken": own},
        disable_log_stats=False,
    )


class Counted:
    """An engine, its plugin, and what vLLM counts of its drafts."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
        self.runner = worker.model_runner
        self.plugin = speculator._current

    def drawn(self, wave: int, *, siblings: bool) -> list[list[int]]:
        """The responses of a wave: the same seeds in each. With siblings those of a prompt are a group."""
        asked, params = [], []
        for prompt in PROMPTS:
            for sample in range(SAMPLES):
                extra = {"foretoken_group": prompt, "foretoken_sample": wave * SAMPLES + sample, "foretoken_offset": 0}
                more = {"extra_args": {**extra, "foretoken_draft": 1}} if siblings else {}
                params.append(SamplingParams(temperature=1.0, seed=7 * sample + 1, max_tokens=TOKENS, **more))
                asked.append(prompt)
        answers = self._llm.generate(asked, params, use_tqdm=False)
        return [list(answer.outputs[0].token_ids) for answer in answers]

    def counts(self) -> dict[str, int]:
        names = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
        found = {metric.name: metric for metric in self._llm.get_metrics()}
        return {name: found[f"vllm:spec_decode_num_{name}"].value for name in names}

    def counted(self, wave: int, *, siblings: bool = True) -> tuple[list[list[int]], dict[str, int]]:
        before = self.counts()
        drawn = self.drawn(wave, siblings=siblings)
        return drawn, {name: count - before[name] for name, count in self.counts().items()}


def main(model: str, folder: str) -> None:
    """The model draws by itself, then beside either head."""
    plain = Counted(engine(model, None, {})).drawn(0, siblings=False)
    speculator.take_over(Faults())
    print(json.dumps({method: beside(model, method, Path(folder, method), plain) for method in METHODS}))


def beside(model: str, method: str, path: Path, plain: list[list[int]]) -> dict[str, Any]:
    if not path.exists():
        make(method, Path(model), path)
    head = {"method": method, "model": str(path), "num_speculative_tokens": DRAFTS}
    both = Counted(engine(model, head, {"beside": 1, "exact": 1, "probability_min": 0.01}))
    waves = [expect(plain, *both.counted(wave)) for wave in (0, 1)]
    strangers = expect(plain, *both.counted(2, siblings=False))
    keeps_its_own(both)
    assert both.plugin is not None
    walk = speculator.walk

    def broken(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("the kernel does not compile")

    speculator.walk = broken
    alone = expect(plain, *both.counted(3))
    speculator.walk = walk
    return {"waves": waves, "strangers": strangers, "alone": alone, "faults": both.plugin.faults.counts}


def expect(plain: list[list[int]], drawn: list[list[int]], counts: dict[str, int]) -> dict[str, int]:
    if drawn != plain:
        raise SystemExit(f"drawn {drawn}, without drafts {plain}")
    return counts


def keeps_its_own(both: Counted) -> None:
    """A head that draws its drafts is left alone, and the log says why; so is one that nobody asked to stand beside."""
    for sampling, own, logged in (("probabilistic", {"beside": 1}, {"beside"}), ("greedy", {}, set())):
        config = copy.copy(both.runner.vllm_config)
        config.speculative_config = copy.copy(config.speculative_config)
        config.speculative_config.draft_sample_method = sampling
        config.additional_config = {"foretoken": own}
        given, faults = (config, both.runner.device, both.runner.req_states), Faults()
        head = model_runner.init_speculator.__wrapped__(*given)
        stands = speculator._beside(head, *given, faults) is not None
        if stands or "propose" in vars(head) or set(faults.counts) != logged:
            raise SystemExit(f"{sampling} drafts are replaced: {faults.counts}")


main(*sys.argv[1:])
