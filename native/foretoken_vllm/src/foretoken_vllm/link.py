"""The background thread with the one WebSocket to the draft server. The step thread never waits for it.

Reconnects with back-off when the connection breaks, at any byte; every fault is counted and logged once.
Holds the interpreter's lock for short pieces only: frames are small, and nothing here loops over tokens.
"""

from __future__ import annotations

import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from .client import DraftClient
from .codec import FrameError
from .faults import Faults
from .mailbox import Mailbox
from .settings import Settings

RETRY_S_MIN = 0.1
RETRY_S_MAX = 2.0
OPEN_S_MAX = 5.0
STATS_S = 2.0
# Larger frames than the server's own default are refused by the socket.
RECEIVE_BYTES_MAX = 16 * 2**20


class Link:
    """One daemon thread: it ends with the process, or at `stop`."""

    def __init__(
        self,
        settings: Settings,
        mailbox: Mailbox,
        faults: Faults,
        stats: Callable[[], dict[str, Any]],
        telemetry: Callable[[], dict[str, Any]],
    ) -> None:
        self._settings = settings
        self._faults = faults
        self._stats = stats
        self._client = DraftClient(settings, mailbox, faults, telemetry)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="foretoken-link", daemon=True)
        self._failures = 0
        self._has_connected = False
        self._stats_at = 0.0
        self.dials = 0

    def start(self) -> None:
        """Once."""
        self._thread.start()

    def stop(self) -> None:
        """Waits for the thread, a second at most."""
        self._stopping.set()
        self._thread.join(1.0)

    @property
    def client(self) -> DraftClient:
        """Its counters may be read from any thread."""
        return self._client

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._settings.draft_url:
                    self._connect()
            except (OSError, WebSocketException, FrameError, EOFError) as error:
                self._failed(error)
            except Exception as error:  # noqa: BLE001 - the thread survives every error
                self._faults.add("link thread", error)
            self._pause()

    def _connect(self) -> None:
        self.dials += 1
        token = self._settings.token
        # Loopback or a private network: no proxy, no compression.
        with connect(
            self._settings.draft_url,
            additional_headers={"Authorization": f"Bearer {token}"} if token else None,
            compression=None,
            proxy=None,
            open_timeout=OPEN_S_MAX,
            close_timeout=0.5,
            max_size=RECEIVE_BYTES_MAX,
        ) as socket:
            try:
                socket.send(self._client.opened())
                while not self._stopping.is_set():
                    self._turn(socket)
            finally:
                self._client.closed()

    def _failed(self, error: Exception) -> None:
        problem = f"{type(error).__name__}: {error}"
        if self._has_connected:
            self._faults.add("link", problem)
        else:
            # A server that the sidecar starts is up before the sidecar.
            self._faults.add("dial", f"{self._settings.draft_url}: {problem}; it keeps trying", level=logging.INFO)

    def _turn(self, socket: ClientConnection) -> None:
        try:
            frame = socket.recv(timeout=self._settings.flush_ms / 1000)
        except TimeoutError:
            frame = None
        now = time.monotonic()
        if isinstance(frame, str):
            raise FrameError("a text message: frames are binary")
        if frame is not None:
            self._client.receive(frame, now)
            self._failures = 0
            self._has_connected = True
        self._idle(now)
        if self._client.is_overdue(now):
            raise FrameError("no answer in time")
        for out in self._client.outgoing(now):
            socket.send(out)

    def _idle(self, now: float) -> None:
        """What is done with and without a connection."""
        self._client.absorb(now)
        self._client.feed()
        if self._settings.stats_file and now >= self._stats_at:
            self._stats_at = now + STATS_S
            self._write_stats()

    def _pause(self) -> None:
        """Until the next dial the engine's words are still taken, so that nothing piles up."""
        span = min(RETRY_S_MIN * 2 ** min(self._failures, 10), RETRY_S_MAX)
        self._failures += 1
        until = time.monotonic() + span * (0.5 + random.random() / 2)
        while not self._stopping.wait(min(self._settings.flush_ms / 1000, span)):
            now = time.monotonic()
            self._idle(now)
            if now >= until:
                return

    def _write_stats(self) -> None:
        """The file appears whole, under another name for each process."""
        link = {"is_ready": self._client.is_ready, "dials": self.dials, **self._client.counts}
        path = Path(self._settings.stats_file)
        fresh = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            fresh.write_text(json.dumps({**self._stats(), "link": link}) + "\n", "utf-8")
            fresh.replace(path)
        except OSError as error:
            self._faults.add("stats file", error)
