"""The sidecar's own HTTP API for rollouts, weights and pausing. Everything else is vLLM's API: use any client of it."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TypedDict

import httpx

# A connection attempt may wait for a sidecar that accepts thousands of others.
CONNECT_S = 30.0
# A response of a rollout may take hours; the sidecar reports a client that reads nothing, and ends its own waits.
TIMEOUT = httpx.Timeout(None, connect=CONNECT_S)
CONTROL_S = 600.0
ERROR_CHARACTERS = 500


class ForetokenError(RuntimeError):
    """The sidecar refused a call. `param` is the field that it refused, if it was one."""

    def __init__(self, message: str, *, status: int, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


class RolloutError(RuntimeError):
    """A rollout ended before all groups had finished."""


class GroupRequest(TypedDict, total=False):
    """One prompt of a rollout, with exactly one of `prompt`, `token_ids` and `messages`."""

    id: str
    prompt: str
    token_ids: Sequence[int]
    messages: Sequence[Mapping[str, Any]]
    n: int
    finish_first: int
    sampling_params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Response:
    """One finished response. P tokens of prompt, T of output."""

    group: str
    index: int
    """Within its group, from 0."""
    prompt_token_ids: list[int]
    """[P]"""
    token_ids: list[int]
    """[T], the stop token included."""
    logprobs: list[float]
    """[T], natural logarithms, of the distribution that was sampled from."""
    text: str
    finish_reason: str
    """stop, length or abort."""
    weight_epoch: int
    """Weight updates before its last token."""
    chunks: list[dict[str, Any]]
    """Which worker generated which tokens, under which weights: `offset` and `tokens` count output tokens."""


@dataclass(frozen=True, slots=True)
class Group:
    """All responses to one prompt, by index."""

    id: str
    responses: list[Response]


class Rollout:
    """Groups as they finish: `async for group in rollout`. It begins with the iteration, and can be iterated once."""

    def __init__(self, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        self._http = http
        self._body = body
        self._is_begun = False
        self.id: str | None = body.get("id")
        """None until it has ended, unless it was given."""
        self.report: dict[str, Any] | None = None
        """Counts and seconds of the whole rollout, once all groups have come."""

    def __aiter__(self) -> AsyncIterator[Group]:
        if self._is_begun:
            raise RolloutError("a rollout is iterated once")
        self._is_begun = True
        return self._groups()

    async def _groups(self) -> AsyncIterator[Group]:
        async with self._http.stream("POST", "/v1/rollouts", json=self._body, timeout=TIMEOUT) as answer:
            await check(answer)
            responses: list[Response] = []
            async for line in lines_of(answer):
                fields = json.loads(line)
                # A group's lines are adjacent.
                if responses and responses[0].group != fields.get("group"):
                    yield Group(responses[0].group, responses)
                    responses = []
                if "rollout" in fields:
                    self._end(fields)
                    return
                responses.append(response_of(fields))
        raise RolloutError("the connection ended before the rollout")

    def _end(self, fields: dict[str, Any]) -> None:
        self.id = fields["rollout"]
        self.report = fields.get("report")
        if fields["state"] != "finished":
            reason = (fields.get("error") or {}).get("message", "")
            raise RolloutError(f"rollout {self.id} was {fields['state']} {reason}".rstrip())


class Client:
    """One sidecar. `async with Client(url) as client`, or call `aclose`.

    verify: how the certificate of an `https` URL is checked; False: not at all.
    """

    def __init__(self, url: str, *, api_token: str | None = None, verify: ssl.SSLContext | bool = True) -> None:
        headers = {} if api_token is None else {"authorization": f"Bearer {api_token}"}
        # A rollout in flight holds its connection, so their number has no limit.
        limits = httpx.Limits(max_connections=None)
        # A transport of one's own asks no proxy (HTTP_PROXY): a sidecar is on this machine or in this cluster.
        transport = httpx.AsyncHTTPTransport(limits=limits, verify=verify)
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=CONTROL_S, transport=transport)

    async def aclose(self) -> None:
        """Ends its connections; a rollout that is not detached is cancelled."""
        await self._http.aclose()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def rollout(
        self,
        groups: Sequence[GroupRequest],
        *,
        n: int | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        id: str | None = None,  # noqa: A002
        model: str | None = None,
        priority: int | None = None,
        on_policy: Literal["strict", "mixed"] | None = None,
        max_staleness: int | None = None,
        finish_first: int | None = None,
        finish_groups: int | None = None,
        carry_from: str | None = None,
        detached: bool = False,
    ) -> Rollout:
        """One iteration over `groups`; nothing is sent before it is iterated.

        n: responses to each group without its own `n`.
        sampling_params: vLLM's sampling parameters, with `max_tokens` and `temperature`, of groups without their own.
        id: a second call with the same id and groups attaches to the first.
        on_policy: strict: all tokens of a response are of one weight epoch. mixed: it continues under new weights.
        max_staleness: mixed, for tokens of weights at most that many epochs old.
        finish_first: a group is whole with its first responses, so many of them; the others are given up.
        finish_groups: the rollout ends with so many whole groups.
        carry_from: id of a finished rollout; its groups that were not whole go on in this one.
        detached: it continues when the connection ends.
        """
        body: dict[str, Any] = {"groups": list(groups)}
        rest = {
            "n": n,
            "sampling_params": sampling_params,
            "id": id,
            "model": model,
            "priority": priority,
            "on_policy": on_policy,
            "max_staleness": max_staleness,
            "finish_first": finish_first,
            "finish_groups": finish_groups,
            "carry_from": carry_from,
            "detached": detached or None,
        }
        body |= {name: value for name, value in rest.items() if value is not None}
        return Rollout(self._http, body)

    async def cancel(self, rollout_id: str) -> None:
        """Gives up the groups of a rollout that have not finished."""
        await self._call("DELETE", f"/v1/rollouts/{rollout_id}")

    async def update_weights(self, path: str) -> str:
        """Every engine loads the weights at `path`, which it must be able to read: a new weight epoch.

        Returns the new version. Raises ForetokenError if an engine failed; that one receives no requests until it has
        the current weights.
        """
        body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        await self._call("POST", "/collective_rpc", json=body)
        return await self.weight_version()

    async def weight_version(self) -> str:
        """What the trainer calls the current weights; without a name of its own, the number of updates."""
        return str((await self._call("GET", "/weight_info"))["weight_version"])

    async def pause(self, mode: Literal["abort", "wait", "keep"] = "keep") -> None:
        """Starts nothing until `resume`. Requests in flight: abort ends, wait lets finish, keep holds them."""
        await self._call("POST", "/pause", params={"mode": mode})

    async def resume(self) -> None:
        """Goes on after `pause`."""
        await self._call("POST", "/resume")

    async def is_paused(self) -> bool:
        """Also while a weight update is open."""
        return bool((await self._call("GET", "/is_paused"))["is_paused"])

    async def is_healthy(self) -> bool:
        """Whether enough engines are ready (`--min-workers`)."""
        return bool((await self._http.get("/health")).is_success)

    async def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        answer = await self._http.request(method, path, **options)
        await check(answer)
        found = answer.json() if answer.content else {}
        return found if isinstance(found, dict) else {"answer": found}


async def lines_of(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Lines of JSON, each ended by LF alone. httpx also ends one at U+2028 and the like, which JSON leaves in texts."""
    parts: list[bytes] = []
    async for read in answer.aiter_bytes():
        first, *others = read.split(b"\n")
        parts.append(first)
        for other in others:
            yield b"".join(parts)
            parts = [other]


async def check(answer: httpx.Response) -> None:
    """Raises ForetokenError for a status of 400 and more."""
    if answer.is_success:
        return
    text = (await answer.aread()).decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        message, param = str(error["message"]), error.get("param")
    except (ValueError, KeyError, TypeError):
        message, param = text[:ERROR_CHARACTERS], None
    raise ForetokenError(f"{answer.status_code}: {message}", status=answer.status_code, param=param)


def response_of(fields: dict[str, Any]) -> Response:
    """One line of the answer."""
    return Response(**{name: fields[name] for name in Response.__slots__})
