"""The second runner's host half: tables of trees, from tokens that come a step late. No vLLM, no Triton."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foretoken_vllm import engine, runner_v2
from foretoken_vllm.faults import Faults
from foretoken_vllm.followers import WORDS_BITS, Followers, key_of, mixed
from foretoken_vllm.length import LengthBudget
from foretoken_vllm.mirror import Mirror
from foretoken_vllm.table import NODES, ROW_WORDS, Tables, rows_of, walk
from foretoken_vllm.table_drafter import TableDrafter
from harness import config, extra, ruin

PROMPT = [1, 2, 3]
STORY = [10, 11, 12, 13, 14, 15, 16]
SLOTS = 4


def data(name: str, given: list[int], group: str = "g", sample: int = 0, max_tokens: int = 100, **more: Any) -> Any:
    """vLLM's NewRequestData."""
    params = SimpleNamespace(extra_args=extra(group, sample, **more), max_tokens=max_tokens, all_stop_token_ids={99})
    offset = int(more.get("offset", 0))
    assert offset < len(given)
    return SimpleNamespace(req_id=name, prefill_token_ids=given, prompt_len=len(given), sampling_params=params)


class Device:
    """What the runner and the kernel do, with a table drafter behind them."""

    def __init__(self, **settings: Any) -> None:
        self.buffers = np.zeros((2, SLOTS, ROW_WORDS), np.int32)
        self.selected = np.zeros(1, np.int32)
        self.words = np.zeros(1 << WORDS_BITS, np.int32)
        tables, followers = Tables(self.buffers, self.selected), Followers(self.words)
        self.drafter = TableDrafter(config(8, **{"probability_min": 0.01, **settings}), tables, followers)
        self.tokens: dict[int, list[int]] = {}

    def add(self, request: Any, slot: int) -> None:
        self.tokens[slot] = list(request.prefill_token_ids)
        self.drafter.tables.clear(slot)
        self.drafter.news.append(partial(self.drafter.mirror.add, request.req_id, request, slot))

    def sample(self, slot: int, tokens: list[int]) -> None:
        self.tokens[slot] += tokens

    def drafts(self, slot: int) -> list[int]:
        return walk(self.buffers[self.selected[0], slot], self.words, self.tokens[slot], 8)


def told(device: Device) -> None:
    """Siblings tell the story to its end, one after the other."""
    for sample in range(4):
        name = f"a{sample}"
        device.add(data(name, PROMPT, sample=10 + sample), 0)
        for token in STORY:
            device.sample(0, [token])
            device.drafter.take([name], [[token]])
        device.drafter.news.append(partial(device.drafter.mirror.remove, name))


def test_a_step_in_which_no_request_takes_drafts_is_no_fault() -> None:
    device = Device()
    told(device)
    device.add(data("b", PROMPT, sample=1, max_tokens=1), 1)
    device.sample(1, [10])
    device.drafter.take(["b"], [[10]])
    assert (device.drafts(1), device.drafter.faults.total) == ([], 0)


def test_a_table_is_walked_with_tokens_that_the_host_has_not_seen() -> None:
    device = Device()
    told(device)
    device.add(data("b", PROMPT, sample=1), 1)
    device.sample(1, [10])
    device.drafter.take(["b"], [[10]])
    assert device.drafts(1) == STORY[1:]
    # A step later, of which the host knows nothing: two accepted and one sampled.
    device.sample(1, [11, 12, 13])
    assert device.drafts(1) == STORY[4:]
    assert device.drafter.faults.total == 0


def test_a_request_has_a_table_before_its_first_token() -> None:
    device = Device()
    told(device)
    device.add(data("b", PROMPT, sample=1), 1)
    device.drafter.take([], [])
    device.sample(1, [10])
    assert device.drafts(1) == STORY[1:]


def test_a_chunk_continues_with_what_it_was_given() -> None:
    device = Device()
    told(device)
    device.add(data("b", PROMPT + STORY[:3], sample=1, offset=3), 1)
    device.drafter.take([], [])
    device.sample(1, [13])
    assert device.drafts(1) == STORY[4:]


def test_a_slot_of_another_request_has_no_table() -> None:
    device = Device()
    told(device)
    device.add(data("b", PROMPT, group="other"), 0)
    assert device.drafts(0) == []


def test_tokens_behind_a_stop_token_or_the_limit_are_not_the_responses() -> None:
    mirror = Mirror(512)
    mirror.add("stop", data("stop", PROMPT), 0)
    mirror.add("limit", data("limit", PROMPT, max_tokens=2), 1)
    kept, requests = mirror.step(["stop", "limit"], [[5, 99, 6], [5, 6, 7]])
    assert kept == [[5, 99], [5, 6]] and all(request.ended for request in requests)
    # The step that was under way when they ended, and one of a request that was removed.
    mirror.remove("limit")
    assert mirror.step(["stop", "limit"], [[7], [8]]) == ([], [])


def test_a_walk_that_leaves_the_tree_goes_on_with_what_followed_in_the_group() -> None:
    followers = Followers(np.zeros(1 << WORDS_BITS, np.int32))
    # Two paths: 4 5 6 and 8.
    row = np.concatenate([[3, 7, key_of(7, 2)], rows_of([0, 4], [4, 5, 6, 8], [-1, 0, 1, -1])[0]])

    def drafted(*since: int) -> list[int]:
        return walk(row, followers.words, [1, 2, 3, *since], 4)

    assert [drafted(), drafted(4, 5), drafted(9, 5)] == [[4, 5, 6], [6], []]
    # Of another group, the prompt's end and a first response, in two pieces; then a second one.
    followers.take([6, 0, 3, 5, 6, 9])
    followers.take_prompt(7, [1, 2, 3])
    followers.take([7, 0, 3, 4, 5, 6, 7, 1, 2, 9, 5])
    followers.take([7, 0, 2, 30, 31, 7, 1, 2, 20, 21])
    assert drafted() == [4, 5, 6, 30]
    assert drafted(4, 5) == [6, 30, 31]
    assert drafted(9, 5) == [20, 21]
    # What came last follows two tokens, unless a third one tells.
    followers.take([7, 2, 3, 40, 9, 5, 7, 2, 1, 41])
    assert [drafted(9, 5), drafted(40, 9, 5), drafted(8, 9, 5)] == [[20, 21], [41], [41]]


def test_publishing_keeps_the_tables_of_requests_that_are_not_in_the_step() -> None:
    buffers, selected = np.zeros((2, SLOTS, ROW_WORDS), np.int32), np.zeros(1, np.int32)
    tables = Tables(buffers, selected)
    tables.publish([1], [3], [(1, 2)], rows_of([0, 1], [7], [-1]))
    tables.publish([2], [4], [(1, 2)], rows_of([0, 1], [8], [-1]))
    now = buffers[selected[0]]
    words = np.zeros(1 << WORDS_BITS, np.int32)
    assert [walk(now[slot], words, [0] * known, 4) for slot, known in ((0, 3), (1, 3), (2, 4))] == [[], [7], [8]]


def test_a_trap_of_the_core_ends_no_step() -> None:
    device = Device()
    told(device)
    assert device.drafter._replica is not None
    ruin(device.drafter._replica._core)
    device.add(data("b", PROMPT, sample=1), 1)
    device.drafter.take(["b"], [[10]])
    assert device.drafter.faults.counts == {"core trap": 1}


def test_256_requests_take_less_than_64_kib_a_step() -> None:
    assert 256 * ROW_WORDS * 4 < 64 * 1024
    assert len(rows_of([0, NODES], [5] * NODES, [-1] * NODES)[0]) == NODES


@pytest.mark.parametrize(
    ("row_us", "requests", "lengths"),
    [
        (1.0, 8, (6, 7, 8)),
        (400.0, 8, (0,)),
        # Where the step itself is long, a few requests have rows for nothing; many have made it short for each.
        (30.0, 2, (6, 7, 8)),
        (30.0, 512, (0,)),
    ],
)
def test_the_length_is_the_fastest_by_measured_step_times(
    row_us: float, requests: int, lengths: tuple[int, ...]
) -> None:
    budget = LengthBudget(8, Faults())
    for i in range(400):
        drafted = 0 if i % 4 == 0 else requests * (1 + i % 8)
        budget.observe(requests, drafted, 1000 + 10 * requests + row_us * drafted)
        budget.learn()
    for i in range(400):
        budget.accept(8, 6 if i % 2 else 2)
    assert budget._best(requests, requests) in lengths


def test_requests_without_siblings_have_no_drafts_and_the_scheduler_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = SimpleNamespace(dynamic_sd_lookup=None, scheduler_config=SimpleNamespace(max_num_seqs=4))
    monkeypatch.setattr(engine, "scheduler", lambda: scheduler)
    device = Device(probability_min=0)
    alone = data("alone", PROMPT)
    alone.sampling_params.extra_args = {}
    device.add(alone, 0)
    device.drafter.take(["alone"], [[10]])
    assert scheduler.dynamic_sd_lookup == [0] * 5
    device.add(data("b", PROMPT, sample=1), 1)
    device.drafter.take(["alone", "b"], [[11], [10]])
    # Step times are not known yet: as many as are configured.
    assert scheduler.dynamic_sd_lookup is None
    assert device.drafter.faults.total == 0


def test_an_unknown_signature_is_named(tmp_path: Path) -> None:
    package = tmp_path / "vllm" / "v1" / "worker" / "gpu" / "spec_decode"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def init_speculator(vllm_config, device, req_states, more):\n    pass\n")
    problems = runner_v2.unknown_in(tmp_path)
    assert problems[0].startswith("init_speculator(vllm_config, device, req_states, more) has hash")
    assert "AsyncOutput.get_output is missing" in problems
    (package / "__init__.py").write_text("def init_speculator(vllm_config, device, req_states):\n    pass\n")
    assert not any(problem.startswith("init_speculator") for problem in runner_v2.unknown_in(tmp_path))


def test_contexts_are_where_the_replay_has_them() -> None:
    # src/tools/replay/late-drafts.test.ts has the same number.
    assert mixed(mixed(7, 123_456), 1) == 534169118
