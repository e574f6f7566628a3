"""The sidecar's real draft service in a process of its own, and a proxy before it that breaks connections."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from golden import ROOT

WAIT_S_MAX = 20.0


def bun() -> str | None:
    """The runtime that the project pins, else the one on PATH; None: there is none."""
    own = ROOT / "node_modules" / "bun" / "bin" / "bun.exe"
    return os.environ.get("FORETOKEN_BUN") or (str(own) if own.exists() else shutil.which("bun"))


def until(holds: Callable[[], bool], what: str) -> None:
    """Looks again and again; fails with `what` if it does not come to hold."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


class Host:
    """test/plugin/draft-host.ts: ends with its stdin."""

    def __init__(self, *arguments: str) -> None:
        command = [bun() or "bun", str(ROOT / "test" / "plugin" / "draft-host.ts"), *arguments]
        self._child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self._answer()["port"])

    @property
    def url(self) -> str:
        """What an engine dials."""
        return f"ws://127.0.0.1:{self.port}/v1/draft"

    def tell(self, **command: Any) -> dict[str, Any]:
        """Its figures afterwards."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(command) + "\n")
        self._child.stdin.flush()
        return self._answer()

    def kill(self) -> None:
        """As a crash does."""
        self._child.kill()
        self._child.wait()

    def close(self) -> None:
        """Whether or not it still lives."""
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        self.kill()
        if self._child.stdout is not None:
            self._child.stdout.close()

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        assert line, "the draft host ended"
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def host(*arguments: str) -> Iterator[Host]:
    """One that is gone afterwards."""
    made = Host(*arguments)
    try:
        yield made
    finally:
        made.close()


class Proxy:
    """Passes bytes on to a port; breaks connections when told, or each after so many bytes."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.cut_after: int | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.connections = 0
        self._random = random.Random(42)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """What an engine dials."""
        return f"ws://127.0.0.1:{self._listener.getsockname()[1]}/v1/draft"

    def cut(self) -> None:
        """Every connection, now."""
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def close(self) -> None:
        """Takes no more."""
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _address = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            self.connections += 1
            with self._lock:
                self._open |= {near, far}
            # The greeting alone takes some 500 bytes.
            left = [1 << 60 if self.cut_after is None else self._random.randrange(400, self.cut_after)]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(*pair, left), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, left: list[int]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                sink.sendall(data[: max(0, left[0])])
                left[0] -= len(data)
                if left[0] <= 0:
                    break
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
