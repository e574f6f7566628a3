"""What verl's `LLMServerClient` takes for an engine: `generate.remote(...)` is answered by a Foretoken sidecar.

The entry point of group `verl.plugins`: verl imports it in each of its processes. It imports nothing of verl and of the
engine plugin, and does nothing by itself. The agent-loop manager that uses it is in `verl.py`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import aiohttp

URL_VARIABLE = "FORETOKEN_URL"
GENERATE = "/inference/v1/generate"
# A sidecar that restarts, or whose queue is full, answers within this time.
ATTEMPTS_MAX = 60
PAUSE_S = 1.0
BUSY = (429, 502, 503)


class SidecarError(RuntimeError):
    """The sidecar refused a request, or could not be reached."""


def sidecar_url() -> str:
    url = os.environ.get(URL_VARIABLE, "").rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise SidecarError(f"{URL_VARIABLE} is {url!r}, not the address of a sidecar such as http://host:8000")
    return url


class Remote:
    """A coroutine under the name that Ray gives to calls of actors."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call

    def remote(self, **fields: Any) -> Awaitable[Any]:
        return self._call(**fields)


class SidecarServer:
    """One sidecar, for any number of event loops. Can be pickled: connections are opened where they are used."""

    def __init__(self, url: str, output: Callable[..., Any], *, response_tokens: int, whole_tokens: int) -> None:
        self.url = url
        self._output = output
        # verl's bounds on a response, and on a prompt and its response.
        self._response_tokens = response_tokens
        self._whole_tokens = whole_tokens
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sessions": {}}

    def for_session(self, session_id: str) -> SidecarHandle:
        return SidecarHandle(self, session_id)

    async def generate(self, session_id: str, **fields: Any) -> Any:
        """@raises SidecarError: with the sidecar's reason."""
        body = self.body_of(**fields)
        answer = await self._post(body, {"X-Session-ID": session_id})
        return self._output(**output_of(answer))

    def body_of(
        self,
        *,
        request_id: str,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        priority: int = 0,
        **others: Any,
    ) -> dict[str, Any]:
        for name, value in others.items():
            if value is not None:
                raise SidecarError(f"{name} is given: a sidecar takes prompts of text only")
        params = dict(sampling_params)
        room = min(self._response_tokens, self._whole_tokens - len(prompt_ids))
        wanted = params.pop("max_new_tokens", None)
        params["max_tokens"] = max(1, params.pop("max_tokens", wanted) or room)
        params["logprobs"] = 0 if params.pop("logprobs", False) else None
        # The sidecar answers a repeated request with what it has made already.
        return {
            "request_id": request_id or uuid4().hex,
            "token_ids": list(prompt_ids),
            "sampling_params": params,
            "priority": priority,
        }

    async def _post(self, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        problem = ""
        for _ in range(ATTEMPTS_MAX):
            try:
                async with self._session().post(self.url + GENERATE, json=body, headers=headers) as response:
                    if response.status == 200:
                        return dict(await response.json())
                    problem = f"{response.status}: {await response.text()}"
                    if response.status not in BUSY:
                        break
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
                problem = repr(error)
            await asyncio.sleep(PAUSE_S)
        raise SidecarError(f"{self.url}{GENERATE} answered {problem[:1000]}")

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            self._sessions = {one: kept for one, kept in self._sessions.items() if not one.is_closed()}
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
            session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
            self._sessions[loop] = session
        return session


class SidecarHandle:
    """What one request is sent to, in place of an actor: all turns of a trajectory are one session."""

    def __init__(self, server: SidecarServer, session_id: str) -> None:
        self._server = server
        self._session_id = session_id

    @property
    def generate(self) -> Remote:
        return Remote(self._generate)

    async def _generate(self, **fields: Any) -> Any:
        return await self._server.generate(self._session_id, **fields)


def output_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The fields of verl's TokenOutput."""
    [choice] = answer["choices"]
    logprobs = choice.get("logprobs")
    versions = [span["version"] for span in choice.get("weight_versions") or []]
    # verl counts steps; a version that is no number says nothing about them.
    steps = [int(version) for version in versions if version.isdecimal()]
    stop = "aborted" if choice["finish_reason"] == "abort" else "completed"
    return {
        "token_ids": choice["token_ids"],
        "log_probs": None if logprobs is None else [entry["logprob"] for entry in logprobs["content"]],
        "stop_reason": stop,
        "num_preempted": 0,
        "extra_fields": {
            "global_steps": steps[-1] if steps else None,
            "min_global_steps": min(steps, default=None),
            "max_global_steps": max(steps, default=None),
            "weight_versions": versions,
        },
    }
