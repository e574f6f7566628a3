"""The second runner's host half: tables of trees, from tokens that come a step late. No vLLM, no Triton."""

from __future__ import annotations

from array import array
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foretoken_vllm import abi, engine, runner_v2
from foretoken_vllm.core import SuffixCore
from foretoken_vllm.lineup import TURNS_FROM
from foretoken_vllm.mailbox import Batch, Delta, Made, SteppedRows
from foretoken_vllm.mirror import Mirror
from foretoken_vllm.table import Tables
from foretoken_vllm.table_drafter import TableDrafter
from harness import config, extra, ruin
from walk_twin import drafted, key_of, mixed, row_of, walk

PROMPT = [1, 2, 3]
STORY = [10, 11, 12, 13, 14, 15, 16]
SLOTS = 4


def data(name: str, given: list[int], group: str = "g", sample: int = 0, max_tokens: int = 100, **more: Any) -> Any:
    """vLLM's NewRequestData."""
    params = SimpleNamespace(
        extra_args=extra(group, sample, **more), max_tokens=max_tokens, eos_token_id=99, stop_token_ids=None
    )
    offset = int(more.get("offset", 0))
    assert offset < len(given)
    return SimpleNamespace(req_id=name, prefill_token_ids=given, prompt_len=len(given), sampling_params=params)


WIDTH = 9


class Device:
    """What the runner and the kernel do, with a table drafter behind them."""

    def __init__(self, slots: int = SLOTS, **settings: Any) -> None:
        self.drafter = TableDrafter(config(8, slots=slots, **{"probability_min": 0.01, **settings}))
        self.tokens: dict[int, list[int]] = {}

    @property
    def tables(self) -> Tables:
        tables = self.drafter.tables
        assert tables is not None
        return tables

    def add(self, request: Any, slot: int) -> None:
        self.tokens[slot] = list(request.prefill_token_ids)
        self.tables.clear(slot)
        self.drafter.news.append(partial(self.drafter.mirror.add, request.req_id, request, slot))

    def remove(self, name: str) -> None:
        self.drafter.news.append(partial(self.drafter.mirror.remove, name))

    def sample(self, slot: int, tokens: list[int]) -> None:
        self.tokens[slot] += tokens

    def take(self, ids: list[str], sampled: list[list[int]]) -> None:
        """As vLLM's output has them: rows of one width, and how many of each are tokens."""
        self.drafter.take(ids, *arrays(sampled))

    def drafts(self, slot: int) -> list[int]:
        return drafted(self.row(slot), self.tables.followers, self.tokens[slot], 8)

    def row(self, slot: int) -> Any:
        return self.tables.buffers[self.tables.selected[0], slot]


def arrays(sampled: list[list[int]]) -> tuple[Any, Any]:
    tokens = np.full((len(sampled), WIDTH), 7, np.int64)
    for row, of in zip(tokens, sampled, strict=True):
        row[: len(of)] = of
    return tokens, np.array([len(of) for of in sampled], np.int32)


def told(device: Device) -> None:
    """Siblings tell the story to its end, one after the other."""
    for sample in range(4):
        name = f"a{sample}"
        device.add(data(name, PROMPT, sample=10 + sample), 0)
        for token in STORY:
            device.sample(0, [token])
            device.take([name], [[token]])
        device.remove(name)


def test_a_step_in_which_no_request_takes_drafts_is_no_fault() -> None:
    device = Device()
    told(device)
    device.add(data("b", PROMPT, sample=1, max_tokens=1), 1)
    device.sample(1, [10])
    device.take(["b"], [[10]])
    assert (device.drafts(1), device.drafter.faults.total) == ([], 0)


def test_a_table_is_walked_with_tokens_that_the_host_has_not_seen() -> None:
    device = Device()
    told(device)
    device.add(data("b", PROMPT, sample=1), 1)
    device.sample(1, [10])
    device.take(["b"], [[10]])
    assert device.drafts(1) == STORY[1:]
    # A step later, of which the host knows nothing: two accepted and one sampled.
    device.sample(1, [11, 12, 13])
    assert device.drafts(1) == STORY[4:]
    assert device.drafter.faults.total == 0


def test_a_request_has_a_table_before_its_first_token() -> None:
    device = Device()
    told(device)
    device.add(data("b", PROMPT, sample=1), 1)
    device.take([], [])
    device.sample(1, [10])
    assert device.drafts(1) == STORY[1:]


def test_a_chunk_continues_with_what_it_was_given() -> None:
    device = Device()
    told(device)
    device.add(data("b", PROMPT + STORY[:3], sample=1, offset=3), 1)
    device.take([], [])
    device.sample(1, [13])
    assert device.drafts(1) == STORY[4:]


def test_a_slot_of_another_request_has_no_table() -> None:
    device = Device()
    told(device)
    device.add(data("b", PROMPT, group="other"), 0)
    assert device.drafts(0) == []


def test_tokens_behind_a_stop_token_or_the_limit_are_not_the_responses() -> None:
    mirror = Mirror(SLOTS, 512)
    mirror.add("stop", data("stop", PROMPT), 0)
    mirror.add("limit", data("limit", PROMPT, max_tokens=2), 1)
    other = data("other", PROMPT)
    other.sampling_params.eos_token_id, other.sampling_params.stop_token_ids = None, [6]
    mirror.add("other", other, 2)
    ids = ["stop", "limit", "other"]
    assert mirror.take(ids, *arrays([[5, 99, 6], [5, 6, 7], [99, 5]]), 1).tolist() == [2, 2, 2]
    assert mirror.tokens[:3, 3:5].tolist() == [[5, 99], [5, 6], [99, 5]]
    # The step that was under way when they ended, and one of a request that was removed.
    mirror.remove("limit")
    assert mirror.take(ids, *arrays([[7], [8], [9, 6]]), 2).tolist() == [0, 0, 2]
    assert mirror.totals[:3].tolist() == [5, 5, 7]


def core_of(slots: int = SLOTS) -> tuple[SuffixCore, Tables]:
    core = SuffixCore()
    return core, Tables(core, slots)


def test_a_walk_that_leaves_the_tree_goes_on_with_what_followed_in_the_group() -> None:
    core, tables = core_of()
    other, group = core.create(), core.create()
    # Two paths: 4 5 6 and 8.
    row = row_of(3, group, key_of(group, 2), [4, 5, 6, 8], [-1, 0, 1, -1])

    def of(*since: int) -> list[int]:
        return drafted(row, tables.followers, [1, 2, 3, *since], 4)

    def take(*words: int, records: int = 1) -> None:
        core.step(list(words), records, array("i"), 0)

    assert [of(), of(4, 5), of(9, 5)] == [[4, 5, 6], [6], []]
    # Of another group, the prompt's end and a first response, in two pieces; then a second one.
    take(other, 0, 3, 5, 6, 9)
    core.prompt(group, array("i", [1, 2, 3]))
    take(group, 0, 3, 4, 5, 6, group, 1, 2, 9, 5, records=2)
    take(group, 0, 2, 30, 31, group, 1, 2, 20, 21, records=2)
    assert of() == [4, 5, 6, 30]
    assert of(4, 5) == [6, 30, 31]
    assert of(9, 5) == [20, 21]
    # What came last follows two tokens, unless a third one tells.
    take(group, 2, 3, 40, 9, 5, group, 2, 1, 41, records=2)
    assert [of(9, 5), of(40, 9, 5), of(8, 9, 5)] == [[20, 21], [41], [41]]


def test_a_step_keeps_the_tables_of_requests_that_are_not_in_it() -> None:
    core, tables = core_of()
    group = core.create()
    core.prompt(group, array("i", PROMPT))
    core.step([group, 0, len(STORY), *STORY], 1, array("i"), 0)

    def step(slot: int, sample: int, tokens: list[int]) -> None:
        record = [group, sample, len(tokens), slot, len(PROMPT) + len(tokens), 8]
        assert core.table_step(np.array([record], np.int32), np.array([tokens])) == []

    step(1, 1, STORY[:1])
    step(2, 2, STORY[:3])
    rows = tables.buffers[tables.selected[0]]
    found = [drafted(rows[slot], tables.followers, PROMPT + STORY[:at], 4) for slot, at in ((0, 3), (1, 1), (2, 3))]
    assert found == [[], STORY[1:5], STORY[3:]]


def test_odds_of_a_draft_are_higher_where_siblings_agree() -> None:
    device = Device()
    told(device)
    device.add(data("b", PROMPT, sample=1), 1)
    device.sample(1, [10])
    device.take(["b"], [[10]])
    tokens = device.tokens[1]
    sure = walk(device.row(1), device.tables.followers, tokens, 1)[0][1]
    for sample in range(2, 8):
        device.add(data(f"c{sample}", PROMPT, sample=sample), 2)
        device.take(["b", f"c{sample}"], [[], [10]])
        device.take(["b", f"c{sample}"], [[], [20 + sample]])
        device.remove(f"c{sample}")
    device.take(["b"], [[]])
    token, unsure = walk(device.row(1), device.tables.followers, tokens, 1)[0]
    assert token == 11 and 0 < unsure < sure < 1


def test_a_record_without_room_fails_alone() -> None:
    core, tables = core_of()
    group = core.create()
    core.prompt(group, array("i", PROMPT))
    records = np.array([[group, 0, 1, 0, 4, 8], [group + 9999, 0, 1, 1, 4, 8], [group, 1, 1, 2, 4, 8]], np.int32)
    assert core.table_step(records, np.array([[10], [10], [10]])) == [1]
    assert tables.buffers[tables.selected[0], :3, 0].tolist() == [4, 0, 4]


def reported(device: Device) -> dict[int, list[int]]:
    """What the link was told of each response, in order; nothing of it twice, nothing left out."""
    found: dict[int, list[int]] = {}
    for item in device.drafter._mailbox.up:
        made: list[Made] = []
        if isinstance(item, Batch):
            made = [*item.given, *item.made]
        elif isinstance(item, SteppedRows):
            made = item.made()
        for _, index, offset, tokens in made:
            assert offset == len(found.setdefault(index, []))
            found[index] += tokens
    return found


def test_steady_steps_draft_and_report_as_single_ones() -> None:
    """The same tokens, with each step steady and with none: equal rows, equal reports."""
    random = np.random.default_rng(5)
    devices = [Device(), Device()]
    for device in devices:
        device.drafter._link = SimpleNamespace()  # type: ignore[assignment]
        told(device)
        device.drafter._mailbox.up.clear()
        for slot in range(3):
            device.add(data(f"r{slot}", PROMPT, sample=slot), slot)
    lasts = [0, 0, 0]
    for step in range(60):
        counts = random.integers(0, 4, size=3)
        sampled = [[STORY[(lasts[i] + k) % len(STORY)] for k in range(counts[i])] for i in range(3)]
        lasts = [at + int(count) for at, count in zip(lasts, counts, strict=True)]
        for each, device in enumerate(devices):
            if each == 1:
                device.drafter._leave()
            for slot in range(3):
                device.sample(slot, sampled[slot])
            device.take(["r0", "r1", "r2"], sampled)
        steady, single = devices
        assert [steady.drafts(slot) for slot in range(3)] == [single.drafts(slot) for slot in range(3)], step
    assert reported(steady) == reported(single)
    assert {index: len(tokens) for index, tokens in reported(steady).items()} == dict(enumerate(lasts))
    assert steady.drafter.counters.quick - single.drafter.counters.quick >= 57
    assert steady.drafter.faults.total == single.drafter.faults.total == 0


def test_many_requests_get_new_tables_in_turns_and_draft_from_older_ones() -> None:
    slots = TURNS_FROM
    device = Device(slots=slots)
    told(device)
    ids = [f"r{slot}" for slot in range(slots)]
    for slot, name in enumerate(ids):
        device.add(data(name, PROMPT, sample=20 + slot), slot)
    for at, token in enumerate(STORY[:4], start=1):
        for slot in range(slots):
            device.sample(slot, [token])
        device.take(ids, [[token]] * slots)
        assert all(device.drafts(slot)[: len(STORY) - at] == STORY[at:] for slot in range(slots)), at
    known = np.bincount(device.tables.buffers[device.tables.selected[0], :slots, 0])
    assert known[len(PROMPT) + 3 :].tolist() == [slots // 2, slots // 2]
    assert device.drafter.counters.quick >= 2 and device.drafter.faults.total == 0


def test_a_fault_before_the_tokens_are_taken_leaves_no_hole() -> None:
    device = Device()
    device.drafter._link = SimpleNamespace()  # type: ignore[assignment]
    device.add(data("a", PROMPT, sample=0), 0)
    for token in STORY:
        if token == STORY[4]:
            # Its bytes are no whole words.
            device.drafter._mailbox.down.append(Delta(0, "g", 5, 0, b"abc"))
        device.sample(0, [token])
        device.take(["a"], [[token]])
    assert device.drafter.faults.counts == {"take": 1}
    assert device.drafter.mirror.tokens[0, : len(PROMPT + STORY)].tolist() == PROMPT + STORY
    told_of: list[int] = []
    for item in device.drafter._mailbox.up:
        made = [*item.given, *item.made] if isinstance(item, Batch) else item.made() if hasattr(item, "made") else []
        for _, _, offset, tokens in made:
            assert offset <= len(told_of)
            told_of[offset:] = tokens
    assert told_of == STORY


def test_tokens_of_steps_before_a_request_came_back_are_dropped() -> None:
    mirror = Mirror(SLOTS, 512)
    mirror.add("a", data("a", PROMPT), 0, 1)
    assert mirror.take(["a"], *arrays([[10]]), 1).tolist() == [1]
    # Preempted while step 2 was under way; it goes on with step 3.
    mirror.remove("a")
    mirror.add("a", data("a", [*PROMPT, 10]), 0, 3)
    kept = [mirror.take(["a"], *arrays([[token]]), step).tolist() for step, token in ((2, 11), (3, 12), (4, 13))]
    assert kept == [[0], [1], [1]]
    assert mirror.tokens[0, : mirror.totals[0]].tolist() == [*PROMPT, 10, 12, 13]


def test_a_drafter_without_a_core_lets_no_step_verify_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = SimpleNamespace(
        dynamic_sd_lookup=None, num_spec_tokens=8, scheduler_config=SimpleNamespace(max_num_seqs=4)
    )
    monkeypatch.setattr(engine, "scheduler", lambda: scheduler)
    device = Device(probability_min=0)
    for _ in range(3):
        told(device)
        assert device.drafter._replica is not None
        ruin(device.drafter._replica._core)
        device.add(data("b", PROMPT, sample=1), 1)
        device.take(["b"], [[10]])
    assert (device.drafter.tables, device.drafter.faults.counts) == (None, {"core trap": 3})
    device.take(["a"], [[11]])
    assert scheduler.dynamic_sd_lookup == [0] * 5


def test_siblings_tokens_from_elsewhere_end_no_steady_batch() -> None:
    device = Device()
    device.add(data("a", PROMPT, sample=0), 0)
    for token in (10, 20, 30):
        device.sample(0, [token])
        device.take(["a"], [[token]])
    tokens = array("i", STORY).tobytes()
    device.drafter._mailbox.down.append(Delta(0, "g", 5, 0, tokens))
    quick = device.drafter.counters.quick
    device.sample(0, [11])
    device.take(["a"], [[11]])
    assert device.drafter.counters.quick == quick + 1
    assert device.drafts(0) == STORY[2:]


def test_a_trap_of_the_core_ends_no_step() -> None:
    device = Device()
    told(device)
    assert device.drafter._replica is not None
    ruin(device.drafter._replica._core)
    device.add(data("b", PROMPT, sample=1), 1)
    device.take(["b"], [[10]])
    assert device.drafter.faults.counts == {"core trap": 1}


def test_256_requests_take_64_kib_a_step() -> None:
    assert 256 * abi.TABLE_ROW_WORDS * 4 <= 64 * 1024
    assert abi.TABLE_HEAD_WORDS + abi.TABLE_NODES == abi.TABLE_ROW_WORDS


def test_requests_without_siblings_have_no_drafts_and_the_scheduler_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = SimpleNamespace(max_num_seqs=4)
    scheduler = SimpleNamespace(dynamic_sd_lookup=None, num_spec_tokens=8, scheduler_config=limits)
    monkeypatch.setattr(engine, "scheduler", lambda: scheduler)
    device = Device(probability_min=0)
    alone = data("alone", PROMPT)
    alone.sampling_params.extra_args = {}
    device.add(alone, 0)
    device.take(["alone"], [[10]])
    assert scheduler.dynamic_sd_lookup == [0] * 5
    device.add(data("b", PROMPT, sample=1), 1)
    device.take(["alone", "b"], [[11], [10]])
    # Step times are not known yet, and rows of two requests cost next to nothing.
    assert scheduler.dynamic_sd_lookup is None
    assert device.drafter.faults.total == 0


def test_vllms_adaptive_verification_chooses_the_length_where_it_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = SimpleNamespace(max_num_seqs=4)
    scheduler = SimpleNamespace(dynamic_sd_lookup=None, num_spec_tokens=8, scheduler_config=limits)
    monkeypatch.setattr(engine, "scheduler", lambda: scheduler)
    given = config(8, slots=SLOTS)
    given.speculative_config.enable_adaptive_verification = True
    drafter = TableDrafter(given)
    drafter.take(["alone"], *arrays([[10]]))
    # Otherwise: no drafts, as there are no siblings.
    assert scheduler.dynamic_sd_lookup is None


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
    # bench/lab/replay/late-drafts.test.ts has the same number.
    assert mixed(mixed(7, 123_456), 1) == 534169118
