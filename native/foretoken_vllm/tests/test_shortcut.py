"""That steps without drafts take the plain way, and others the one they took."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from foretoken_vllm import shortcut
from foretoken_vllm.faults import Faults


class Runner:
    """The runner's two methods, as vLLM 0.32 has them; what they were called with."""

    def __init__(self) -> None:
        self.sampled: list[Any] = []
        self.described = 0
        self.query_start_loc = SimpleNamespace(gpu=np.array([0, 3, 4, 9, 9], np.int32))

    def _sample(self, logits: Any, spec_decode_metadata: Any) -> Any:
        self.sampled.append(spec_decode_metadata)
        return logits

    def _calc_spec_decode_metadata(self, num_draft_tokens: Any, cu_num_scheduled_tokens: Any) -> Any:
        self.described += 1
        longest = int(num_draft_tokens.max())
        return SimpleNamespace(max_spec_len=longest, logits_indices=cu_num_scheduled_tokens - 1)


def step(runner: Any, drafts: list[int], scheduled: list[int]) -> Any:
    ends = np.cumsum(np.array(scheduled, np.int32), dtype=np.int32)
    runner.query_start_loc.gpu[1 : len(ends) + 1] = ends
    metadata = runner._calc_spec_decode_metadata(np.array(drafts, np.int32), ends)
    assert runner._sample("logits", metadata) == "logits"
    return metadata


def test_a_step_without_drafts_is_sampled_as_without_speculation() -> None:
    runner = Runner()
    assert shortcut.take(runner, Faults())
    for scheduled in ([1, 1, 1], [1, 7, 1], [2, 1, 5]):
        metadata = step(runner, [0, 0, 0], scheduled)
        assert metadata.logits_indices.tolist() == (np.cumsum(scheduled) - 1).tolist()
    assert runner.sampled == [None, None, None]
    # What does not change is described once for each number of requests.
    assert runner.described == 1


def test_what_a_step_was_told_does_not_change_with_the_next() -> None:
    runner = Runner()
    shortcut.take(runner, Faults())
    step(runner, [0, 0], [1, 1])
    earlier = step(runner, [0, 0], [4, 1])
    step(runner, [0, 0], [1, 1])
    assert earlier.logits_indices.tolist() == [3, 4]


def test_a_step_with_drafts_goes_as_before() -> None:
    runner = Runner()
    shortcut.take(runner, Faults())
    step(runner, [0, 0], [1, 1])
    metadata = step(runner, [0, 2], [1, 3])
    assert runner.sampled == [None, metadata]
    assert runner.described == 2


def test_a_runner_of_another_make_is_left_as_it_is() -> None:
    class Other:
        def _sample(self, logits: Any) -> Any:
            return logits

    faults = Faults()
    assert not shortcut.take(Other(), faults)
    assert faults.counts == {"shortcut": 1}


def test_a_runner_is_wrapped_once() -> None:
    runner = Runner()
    assert shortcut.take(runner, Faults())
    wrapped = runner._sample
    assert not shortcut.take(runner, Faults())
    assert runner._sample is wrapped
