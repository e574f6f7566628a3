"""The client's own reading of answers, without a sidecar."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from foretoken import Group, RolloutError
from foretoken.client import Rollout

# Whatever str.splitlines takes for the end of a line and JSON leaves in a text as it is.
TEXT = "a\u2028b\u2029c\u0085d"


def line(group: str, index: int) -> bytes:
    fields = {"group": group, "index": index, "prompt_token_ids": [1], "token_ids": [2], "logprobs": [-1.0]}
    rest = {"text": TEXT, "finish_reason": "stop", "weight_epoch": 0, "chunks": []}
    return json.dumps(fields | rest, ensure_ascii=False).encode() + b"\n"


SUMMARY = b'{"rollout": "r", "state": "finished", "report": {}}\n'


def groups_of(body: bytes, part: int) -> list[Group]:
    async def parts() -> AsyncIterator[bytes]:
        for at in range(0, len(body), part):
            yield body[at : at + part]

    async def read() -> list[Group]:
        transport = httpx.MockTransport(lambda _: httpx.Response(200, content=parts()))
        async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as http:
            return [group async for group in Rollout(http, {})]

    return asyncio.run(read())


@pytest.mark.parametrize("part", [1, 7, 100_000])
def test_only_lf_ends_a_line(part: int) -> None:
    groups = groups_of(line("a", 0) + line("a", 1) + line("b", 0) + SUMMARY, part)
    assert [(group.id, [one.text for one in group.responses]) for group in groups] == [("a", [TEXT] * 2), ("b", [TEXT])]


def test_a_line_that_is_cut_is_no_line() -> None:
    with pytest.raises(RolloutError, match="the connection ended"):
        groups_of(line("a", 0) + SUMMARY[:-1], 64)
