"""The first runner's keyed noise on vLLM's own samplers: the same tokens drafted or not, and the model's distribution.

Prints one JSON object; an assertion that fails is the test's failure.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from foretoken_vllm import keyed, repair
from foretoken_vllm.faults import Faults

VOCABULARY, MADE = 64, 40
# Temperature, top_k, top_p of each request; the last is greedy.
KINDS = ((1.0, VOCABULARY, 1.0), (0.7, VOCABULARY, 0.9), (1.3, 8, 1.0), (1.0, VOCABULARY, 1.0), (0.0, VOCABULARY, 1.0))
COUNT = len(KINDS)


def model(text: list[int]) -> torch.Tensor:
    """Logits that depend on the last tokens alone, and repeat."""
    generator = torch.Generator().manual_seed(text[-1] * 131 + text[-2] % 7)
    return torch.randn(VOCABULARY, generator=generator) * 2


class Runner:
    """The runner's sampling, as vLLM has it, over a batch that is made up."""

    _sample = GPUModelRunner._sample
    use_async_scheduling = False

    def __init__(self, faults: Faults) -> None:
        self.sampler = Sampler()
        self.rejection_sampler = RejectionSampler(self.sampler, None, torch.device("cpu"))
        self.requests: dict[str, Any] = {}
        assert keyed.install(self, faults) and not keyed.install(self, faults)

    def _get_spec_decode_draft_probs(self, _metadata: Any) -> None:
        return None

    def step(self, order: list[int], texts: list[list[int]], drafts: list[list[int]]) -> list[list[int]]:
        names = [f"request-{i}" for i in order]
        for i, name in zip(order, names, strict=True):
            params = SimpleNamespace(seed=5, extra_args={"foretoken_seed": 1000 + i})
            self.requests[name] = SimpleNamespace(sampling_params=params)
        lengths = np.array([len(texts[i]) for i in order], np.int32)
        self.input_batch = SimpleNamespace(
            req_ids=names,
            num_tokens_no_spec=lengths,
            generators={0: torch.Generator().manual_seed(1)},
            sampling_metadata=metadata([KINDS[i] for i in order]),
            update_async_output_token_ids=lambda: None,
        )
        lines = [texts[i] + drafts[i][:n] for i in order for n in range(len(drafts[i]) + 1)]
        logits = torch.stack([model(line) for line in lines])
        drafted = [drafts[i] for i in order]
        if not any(drafted):
            return self._sample(logits, None).sampled_token_ids.tolist()
        described = described_as(drafted)
        made = self._sample(logits, described).sampled_token_ids
        return RejectionSampler.parse_output(made, VOCABULARY)[0]


def metadata(kinds: list[tuple[float, int, float]]) -> SamplingMetadata:
    temperature, top_k, top_p = (torch.tensor(column) for column in zip(*kinds, strict=True))
    greedy = int((temperature == 0).sum())
    none = torch.zeros(len(kinds))
    return SamplingMetadata(
        temperature=temperature, all_greedy=False, all_random=greedy == 0, top_p=top_p, top_k=top_k.to(torch.int32),
        generators={}, max_num_logprobs=1, no_penalties=True, prompt_token_ids=None, frequency_penalties=none,
        presence_penalties=none, repetition_penalties=none, output_token_ids=[[] for _ in kinds],
        allowed_token_ids_mask=None, bad_words_token_ids={}, logitsprocs=LogitsProcessors(),
    )  # fmt: skip


def described_as(drafts: list[list[int]]) -> SpecDecodeMetadata:
    """As `_calc_spec_decode_metadata`."""
    made = SpecDecodeMetadata.make_dummy(drafts, torch.device("cpu"))
    counts = torch.tensor([len(one) for one in drafts])
    ends = torch.cumsum(counts + 1, 0)
    made.bonus_logits_indices = (ends - 1).to(torch.int32)
    is_bonus = torch.zeros(int(ends[-1]), dtype=torch.bool).index_fill_(0, ends - 1, True)
    made.target_logits_indices = torch.nonzero(~is_bonus).view(-1).to(torch.int32)
    return made


def grown(runner: Runner, right: list[list[int]] | None, order: list[int], piece: int) -> tuple[list[list[int]], int]:
    """`right`: what is drafted, with every third token wrong; accepted tokens are counted."""
    texts = [[3, i + 1] for i in range(COUNT)]
    accepted = 0
    while min(map(len, texts)) < MADE:
        drafts = [[] for _ in texts]
        if right is not None:
            for i, text in enumerate(texts):
                drafts[i] = right[i][len(text) : len(text) + (len(text) + i) % piece]
                drafts[i] = [token if j % 3 < 2 else (token + 1) % VOCABULARY for j, token in enumerate(drafts[i])]
        for i, tokens in zip(order, runner.step(order, texts, drafts), strict=True):
            texts[i] += tokens
            accepted += len(tokens) - 1
    return texts, accepted


def is_distributed(noise: Any, rows: int = 100_000) -> bool:
    """Of the model's distribution, by a chi-squared test at one in ten thousand."""
    chances = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625])
    keys = keyed.row_keys(np.full(rows, 7, np.uint64), np.arange(rows, dtype=np.uint64))
    drawn = torch.bincount(noise(chances.log().expand(rows, -1).contiguous(), torch.from_numpy(keys)), minlength=5)
    return float(((drawn - rows * chances) ** 2 / (rows * chances)).sum()) < 23.5


def main() -> None:
    current_platform.import_kernels()
    rejection_sampler.expand_batch_to_tokens = repair.replacement(torch)
    faults = Faults()
    runner = Runner(faults)
    forward, backward = list(range(COUNT)), list(reversed(range(COUNT)))
    plain, _ = grown(runner, None, forward, 1)
    right = [line[:MADE] for line in plain]
    again, accepted = grown(Runner(faults), right, backward, 6)
    assert [line[:MADE] for line in again] == right, "drafts or places change tokens"
    assert accepted > MADE, accepted
    assert faults.total == 0, faults.counts
    torch_noise = lambda logits, keys: torch.argmax(logits + keyed.gumbel(keys, logits.shape[1], torch), dim=-1)  # noqa: E731
    assert is_distributed(torch.ops._C.fused_gumbel_argmax) and is_distributed(torch_noise)
    # A fault of ours costs exactness and no step.
    runner.step(forward, plain, [[] for _ in plain])
    broken = SimpleNamespace(**vars(runner.input_batch))
    del broken.num_tokens_no_spec
    runner.input_batch = broken
    sampled = runner._sample(torch.stack([model(line) for line in plain]), None).sampled_token_ids
    assert sampled.shape == (COUNT, 1) and faults.counts == {"exact": 1}, faults.counts
    print(json.dumps({"tokens": sum(map(len, right)), "accepted": accepted}))


main()
