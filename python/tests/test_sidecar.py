"""A real sidecar on one embedded engine: start, rollout, weights, end. FORETOKEN_PROGRAM names the program."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time

import pytest

from foretoken import AsyncSidecar, Client, ForetokenError, GroupRequest, RolloutError, Sidecar, SidecarError
from foretoken.sidecar import Option, flags_of

PROMPT = "<|user|>total 6 2 6<|assistant|>"
ENGINE = {"llama": 1, "slots": 4, "kv_tokens": 2048}


def test_options_become_flags() -> None:
    options: dict[str, Option] = {
        "chunk_tokens": 64,
        "insecure": True,
        "draft": None,
        "allow_origin": ["a", "b"],
        "config": False,
    }
    expected = ["--chunk-tokens", "64", "--insecure", "--allow-origin", "a", "--allow-origin", "b"]
    assert flags_of(options) == expected


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(SidecarError, match="--polixy"):
        Sidecar(llama=1, polixy="seer").start()
    with pytest.raises(TypeError, match="list"):
        Sidecar(workers="http://a:1")


def test_rollout_weights_and_pause(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="foretoken")

    async def use(url: str) -> None:
        async with Client(url, api_token="secret") as client:
            groups: list[GroupRequest] = [{"id": f"g{i}", "prompt": PROMPT} for i in range(3)]
            rollout = client.rollout(groups, n=4, sampling_params={"max_tokens": 32, "temperature": 1.0})
            done = [group async for group in rollout]
            assert sorted(group.id for group in done) == ["g0", "g1", "g2"]
            for group in done:
                assert [response.index for response in group.responses] == [0, 1, 2, 3]
                for response in group.responses:
                    assert len(response.token_ids) == len(response.logprobs) > 0
            assert rollout.report is not None
            assert rollout.report["finished_requests"] == 12
            with pytest.raises(RolloutError, match="once"):
                rollout.__aiter__()
            with pytest.raises(ForetokenError) as refused:
                wrong = client.rollout([{"id": "a", "prompt": PROMPT}], sampling_params={"max_token": 1})
                [group async for group in wrong]
            assert refused.value.status == 400
            assert "max_token" in str(refused.value)
            await client.pause()
            assert await client.is_paused()
            await client.resume()
            assert not await client.is_paused()
            assert await client.weight_version() == "0"
            with pytest.raises(ForetokenError, match="/nowhere"):
                await client.update_weights("/nowhere")
            assert await client.is_healthy()

    with Sidecar(**ENGINE, api_token="secret") as sidecar:  # type: ignore[arg-type]
        pid = sidecar.pid
        assert pid is not None
        with open(f"/proc/{pid}/cmdline") as file:
            assert "secret" not in file.read()
        asyncio.run(use(sidecar.url))
    assert has_ended(pid)
    assert "listening" in caplog.text


def test_async_sidecar(monkeypatch: pytest.MonkeyPatch) -> None:
    # A cluster's proxy knows no way back to this machine.
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)

    async def use() -> None:
        async with AsyncSidecar(**ENGINE) as sidecar, Client(sidecar.url) as client:  # type: ignore[arg-type]
            assert await client.is_healthy()

    asyncio.run(use())


def test_a_killed_parent_takes_its_sidecar_along() -> None:
    script = f"""
from foretoken import Sidecar
import time
sidecar = Sidecar(**{ENGINE!r}).start()
print(sidecar.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not has_ended(pid)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while not has_ended(pid):
        assert time.monotonic() < deadline, "the sidecar goes on"
        time.sleep(0.1)


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True
