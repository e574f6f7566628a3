"""The core gives here what it gives in the other host: the same bytes, the same drafts."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest

from foretoken_vllm import abi
from foretoken_vllm.core import CoreError, CoreTrapError, SuffixCore, float_word
from golden import core_vectors
from harness import ruin

VECTORS = core_vectors()


def step(core: SuffixCore, operation: dict[str, Any]) -> dict[str, Any]:
    words: list[int] = []
    owners: list[int] = []
    for handle, sequence, tokens in operation["appends"]:
        words += (handle, sequence, len(tokens))
        words += tokens
        owners.append(handle)
    asks: list[int] = []
    for handle, sequence, tokens_max, tree, least, weight in operation["asks"]:
        flags = abi.DRAFT_FLAG_TREE if tree else 0
        asks += (handle, sequence, tokens_max, flags, float_word(least), float_word(weight))
    found = core.step(words, len(owners), array("i", asks), len(operation["asks"]), operation["budget"])
    count = len(found.tokens)
    parents_at = core._drafts_max * (1 + abi.TREE_TOKENS_MAX) + 2
    parents, probabilities = core._output[parents_at : parents_at + count].tolist(), core.probabilities(count)
    return {
        "starts": found.starts,
        "tokens": found.tokens,
        "parents": parents,
        "probabilities": probabilities,
        "full": sorted({owners[record] for record in found.failed}),
    }


@pytest.mark.parametrize("name", list(VECTORS))
def test_the_same_records_give_the_same_drafts(name: str) -> None:
    vector = VECTORS[name]
    core = SuffixCore(limit_bytes=vector["limit_bytes"], learning=vector["learning"])
    for operation in vector["operations"]:
        kind = operation["op"]
        if kind == "create":
            handle = core.create()
            assert core.prompt(handle, array("i", operation["prompt"])) == abi.STATUS_OK
            assert handle == operation["handle"]
        elif kind == "history":
            assert core.history(operation["handle"], array("i", operation["tokens"])) == abi.STATUS_OK
        elif kind == "drop":
            core.drop(operation["handle"])
        else:
            assert step(core, operation) == {key: operation[key] for key in step_results}


step_results = ("starts", "tokens", "parents", "probabilities", "full")


def test_there_are_vectors() -> None:
    assert {"path", "learning", "tree", "budget", "full"} <= set(VECTORS)


def test_a_core_that_is_missing_or_no_core_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CoreError, match="npm run build"):
        SuffixCore(tmp_path / "core.wasm")
    rubbish = tmp_path / "rubbish.wasm"
    rubbish.write_bytes(b"no wasm")
    with pytest.raises(CoreError, match="not the core"):
        SuffixCore(rubbish)


def test_a_core_of_another_abi_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abi, "ABI_VERSION", abi.ABI_VERSION + 1)
    with pytest.raises(CoreError, match=f"ABI {abi.ABI_VERSION - 1}"):
        SuffixCore()


def test_more_words_than_the_input_holds_are_refused_before_they_cross() -> None:
    core = SuffixCore(limit_bytes=8 * 2**20)
    handle = core.create()
    core.prompt(handle, array("i", [1]))
    count = core.words_max
    with pytest.raises(CoreError, match="more than the input area holds"):
        core.step([handle, 0, count, *([1] * count)], 1, array("i"), 0)
    assert core.step([handle, 0, 1, 5], 1, array("i"), 0).failed == []


def test_a_record_of_a_group_that_is_not_there_fails_alone() -> None:
    core = SuffixCore(limit_bytes=8 * 2**20)
    handle = core.create()
    core.prompt(handle, array("i", [1]))
    found = core.step([77, 0, 1, 5, handle, 0, 1, 5], 2, array("i"), 0)
    assert found.failed == [0]


def test_a_core_that_trapped_is_never_called_again() -> None:
    core = SuffixCore(limit_bytes=8 * 2**20)
    handle = core.create()
    core.prompt(handle, array("i", [1]))
    assert core.step([handle, 0, 1, 5], 1, array("i"), 0).failed == []
    ruin(core)
    with pytest.raises(CoreTrapError, match="gave up"):
        core.step([handle, 0, 1, 5], 1, array("i"), 0)
    for call in (
        lambda: core.step([], 0, array("i"), 0),
        core.create,
        core.used_bytes,
        lambda: core.drop(handle),
        lambda: core.prompt(handle, array("i", [1])),
    ):
        with pytest.raises(CoreTrapError, match="refused, the core has trapped"):
            call()
    # Another instance has nothing of it.
    assert SuffixCore(limit_bytes=8 * 2**20).create() > 0
