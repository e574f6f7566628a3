"""A sidecar as a child process of a trainer.

It is ready when `start` returns. It ends with `stop`, with the `with` block, and when this process ends, also if that
is killed: the sidecar watches this process by its number (`FORETOKEN_PARENT`). Its log lines go to the logger
`foretoken`.
"""

from __future__ import annotations

import asyncio
import collections
import json
import logging
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO

from foretoken._program import command, environment

Option = str | int | float | bool | Sequence[str] | None

LOG = logging.getLogger("foretoken")
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
# Lines of a sidecar that ended early that its error quotes.
LINES_KEPT = 20
POLL_S = 0.05
ANSWER_S_MAX = 5.0
# After the second signal: the time to close its sockets.
KILL_S = 5.0
# Of these, a list of processes shows no value.
SECRET = ("api_token", "worker_token")


class SidecarError(RuntimeError):
    """The sidecar did not start, or ended by itself; the message has its last lines."""


class Sidecar:
    """`foretoken serve` on this machine, in front of `workers`.

    workers: URLs of vLLM servers, `http://HOST:PORT`.
    llama: embedded engines to run besides, on the CPU.
    policy: the order of requests; None: the program's default.
    host, port: where it listens; port 0: any free one.
    api_token: clients must send it as `Authorization: Bearer TOKEN`; required if `host` is not loopback.
    start_timeout_s: seconds until it must be healthy, loading models included.
    stop_timeout_s: seconds that requests in flight have to finish when it is stopped.
    options: every other option of `foretoken serve --help`, with _ for -: `chunk_tokens=1024`, `draft="off"`.
        True sets a switch, a list repeats an option, None and False leave it out.
    """

    def __init__(
        self,
        *,
        workers: Sequence[str] = (),
        llama: int = 0,
        policy: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        api_token: str | None = None,
        start_timeout_s: float = 600.0,
        stop_timeout_s: float = 10.0,
        **options: Option,
    ) -> None:
        if isinstance(workers, str):
            raise TypeError("workers is a list of URLs, not one text")
        given: dict[str, Option] = {"worker": list(workers), "llama": llama or None, "policy": policy}
        given |= {"host": host, "port": port, "api_token": api_token, **options}
        self.start_timeout_s = start_timeout_s
        self.stop_timeout_s = stop_timeout_s
        self._token = api_token
        self._secrets = {f"FORETOKEN_{name.upper()}": str(given.pop(name)) for name in SECRET if given.get(name)}
        self._flags = flags_of(given)
        self._process: subprocess.Popen[bytes] | None = None
        self._url: str | None = None
        self._listening = threading.Event()
        self._lines: collections.deque[str] = collections.deque(maxlen=LINES_KEPT)
        self._readers: list[threading.Thread] = []

    @property
    def url(self) -> str:
        """`http://HOST:PORT`, without a path."""
        if self._url is None:
            raise SidecarError("the sidecar has not been started")
        return self._url

    @property
    def pid(self) -> int | None:
        """The number of its process; None: it does not run."""
        return None if self._process is None else self._process.pid

    def start(self) -> Sidecar:
        """Returns when it is healthy: every engine that it needs is ready. Raises SidecarError."""
        if self._process is not None:
            raise SidecarError("the sidecar has been started already")
        deadline = time.monotonic() + self.start_timeout_s
        arguments = [*command(), "serve", *self._flags, "--log", "json"]
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment() | self._secrets | {"FORETOKEN_PARENT": str(os.getpid())},
        )
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            reader = threading.Thread(target=self._read, args=(stream,), name="foretoken-log", daemon=True)
            reader.start()
            self._readers.append(reader)
        try:
            self._wait(deadline)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Lets requests in flight finish for `stop_timeout_s`, then ends it. Safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        for wait_s in (self.stop_timeout_s, KILL_S):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(wait_s)
                break
            except subprocess.TimeoutExpired:
                continue
        else:
            process.kill()
            process.wait()
        for reader in self._readers:
            reader.join(ANSWER_S_MAX)
        self._readers.clear()

    def __enter__(self) -> Sidecar:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait(self, deadline: float) -> None:
        assert self._process is not None
        reason = "it does not listen"
        while time.monotonic() < deadline:
            status = self._process.poll()
            if status is not None:
                for reader in self._readers:
                    reader.join(ANSWER_S_MAX)
                raise SidecarError(f"foretoken serve ended with status {status}:\n" + "\n".join(self._lines))
            if not self._listening.wait(POLL_S):
                continue
            health = self._health()
            if health is None:
                return
            reason = health
            time.sleep(POLL_S)
        raise SidecarError(f"not healthy in {self.start_timeout_s:g} s: {reason}\n" + "\n".join(self._lines))

    def _health(self) -> str | None:
        """None: healthy; else what it answers."""
        request = urllib.request.Request(f"{self.url}/health")
        if self._token is not None:
            request.add_header("authorization", f"Bearer {self._token}")
        # A proxy of the environment is for other hosts.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=ANSWER_S_MAX):
                return None
        except urllib.error.HTTPError as error:
            return f"/health answers {error.code}: {error.read(500).decode(errors='replace')}"
        except OSError as error:
            return str(error)

    def _read(self, stream: IO[bytes]) -> None:
        for raw in stream:
            line = raw.decode(errors="replace").rstrip()
            self._lines.append(line)
            level, text, fields = parse(line)
            if fields.get("event") == "listening":
                self._url = str(fields.get("url"))
                self._listening.set()
            LOG.log(level, "%s", text)


class AsyncSidecar:
    """`Sidecar` for `async with`: takes the same arguments, and does not block the event loop."""

    def __init__(
        self,
        *,
        workers: Sequence[str] = (),
        llama: int = 0,
        policy: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        api_token: str | None = None,
        start_timeout_s: float = 600.0,
        stop_timeout_s: float = 10.0,
        **options: Option,
    ) -> None:
        self._sidecar = Sidecar(
            workers=workers,
            llama=llama,
            policy=policy,
            host=host,
            port=port,
            api_token=api_token,
            start_timeout_s=start_timeout_s,
            stop_timeout_s=stop_timeout_s,
            **options,
        )

    @property
    def url(self) -> str:
        """`http://HOST:PORT`, without a path."""
        return self._sidecar.url

    @property
    def pid(self) -> int | None:
        """The number of its process; None: it does not run."""
        return self._sidecar.pid

    async def start(self) -> AsyncSidecar:
        """As Sidecar.start. A start that is cancelled leaves no process."""
        starting = asyncio.ensure_future(asyncio.to_thread(self._sidecar.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await self.stop()
            await asyncio.gather(starting, return_exceptions=True)
            raise
        return self

    async def stop(self) -> None:
        """As Sidecar.stop."""
        await asyncio.to_thread(self._sidecar.stop)

    async def __aenter__(self) -> AsyncSidecar:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def flags_of(options: Mapping[str, Option]) -> list[str]:
    """`{"chunk_tokens": 64}` as `["--chunk-tokens", "64"]`."""
    flags: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is None or value is False:
            continue
        if value is True:
            flags.append(flag)
        elif isinstance(value, str | int | float):
            flags += [flag, str(value)]
        else:
            for one in value:
                flags += [flag, str(one)]
    return flags


def parse(line: str) -> tuple[int, str, dict[str, object]]:
    """Level, text and fields of a line; one that is no JSON is a line of standard output."""
    try:
        fields = json.loads(line)
    except ValueError:
        return logging.INFO, line, {}
    if not isinstance(fields, dict):
        return logging.INFO, line, {}
    level = LEVELS.get(str(fields.get("level")), logging.INFO)
    rest = " ".join(f"{name}={value}" for name, value in fields.items() if name not in ("time", "level", "event"))
    return level, f"{fields.get('event', '')} {rest}".rstrip(), fields
