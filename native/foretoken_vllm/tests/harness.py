"""A stand-in for vLLM's runner: the attributes that the proposer reads, driven with numpy arrays. A harness, not vLLM.

Rows move as they do in vLLM (a finished row's place is taken by the last one), so that nothing can be keyed by row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from foretoken_vllm.core import SuffixCore
from foretoken_vllm.proposer import ForetokenProposer

VOCABULARY = 1000
LENGTH_MAX = 512
ROWS_MAX = 256
# Behind the core's static data.
RUIN_FROM = 64 * 1024


def config(tokens: int = 8, length_max: int = LENGTH_MAX, slots: int = ROWS_MAX, **foretoken: Any) -> Any:
    """The parts of a VllmConfig that are read."""
    return SimpleNamespace(
        additional_config={"foretoken": foretoken},
        speculative_config=SimpleNamespace(num_speculative_tokens=tokens),
        scheduler_config=SimpleNamespace(max_num_seqs=slots),
        model_config=SimpleNamespace(max_model_len=length_max, get_vocab_size=lambda: VOCABULARY),
    )


@dataclass
class Chunk:
    """A request as vLLM holds it: what it was given, and what it has made since."""

    request_id: str
    given: list[int]
    extra: dict[str, Any]
    max_tokens: int = 1 << 20
    made: list[int] = field(default_factory=list)


class Runner:
    """`input_batch`, `requests`, and a step that calls the drafter as GPUModelRunner does."""

    def __init__(self, drafter: ForetokenProposer) -> None:
        self.drafter = drafter
        self.requests: dict[str, Any] = {}
        self.chunks: list[Chunk] = []
        self.input_batch = SimpleNamespace(
            req_ids=[], num_prompt_tokens=np.zeros(ROWS_MAX, np.int32), req_id_to_index={}
        )
        self.token_ids = np.zeros((ROWS_MAX, LENGTH_MAX), np.int32)
        self.lengths = np.zeros(ROWS_MAX, np.int32)
        self.reloads = 0

    def load_model(self) -> None:
        """As CPUModelRunner: straight from the method, with no argument that names the runner."""
        self.drafter.load_model(object())

    def reload_weights(self, **_options: Any) -> None:
        """A weight epoch."""
        self.reloads += 1

    def add(self, chunk: Chunk) -> None:
        """A request begins in the last row."""
        self.chunks.append(chunk)
        params = SimpleNamespace(extra_args=chunk.extra, max_tokens=chunk.max_tokens)
        self.requests[chunk.request_id] = SimpleNamespace(sampling_params=params)

    def finish(self, request_id: str) -> None:
        """The last row takes the place of the one that ended."""
        at = next(i for i, chunk in enumerate(self.chunks) if chunk.request_id == request_id)
        last = self.chunks.pop()
        if at < len(self.chunks):
            self.chunks[at] = last
        del self.requests[request_id]

    def step(self, sampled: dict[str, list[int]], *, propose: bool = True) -> dict[str, list[int]]:
        """Tokens accepted by request id; those left out are still in prefill. Drafts by request id."""
        batch = self.input_batch
        # In place, as vLLM does.
        batch.req_ids[:] = [chunk.request_id for chunk in self.chunks]
        lists: list[list[int]] = []
        for i, chunk in enumerate(self.chunks):
            tokens = sampled.get(chunk.request_id, [])
            chunk.made += tokens
            line = chunk.given + chunk.made
            self.token_ids[i, : len(line)] = line
            self.lengths[i] = len(line)
            batch.num_prompt_tokens[i] = len(chunk.given)
            lists.append(list(tokens))
        if not propose:
            return {}
        drafts = self.drafter.propose(lists, self.lengths, self.token_ids, slot_mappings=None)
        assert len(drafts) == len(self.chunks)
        return dict(zip(batch.req_ids, drafts, strict=True))


def ruin(core: SuffixCore) -> None:
    """Whatever the core follows in its memory now leads out of it: the next call that does traps."""
    size = core._memory.data_len(core._store)
    core._memory.write(core._store, b"\xff" * (size - RUIN_FROM), RUIN_FROM)


def extra(group: str, sample: int, offset: int = 0, **more: Any) -> dict[str, Any]:
    """What src/engines/vllm/body.ts sends with a chunk."""
    return {
        "foretoken_group": group,
        "foretoken_sample": sample,
        "foretoken_offset": offset,
        "foretoken_draft": 1,
        **more,
    }


def engine(tokens: int = 8, **foretoken: Any) -> tuple[ForetokenProposer, Runner]:
    """A proposer bound to its runner by the frame of `load_model`."""
    settings = {"probability_min": 0.01, **foretoken}
    proposer = ForetokenProposer(config(tokens, **settings))
    runner = Runner(proposer)
    runner.load_model()
    return proposer, runner
