"""Foretoken from Python: start a sidecar, send it rollouts, update its weights.

    from foretoken import Client, Sidecar

    with Sidecar(workers=["http://gpu-0:8000", "http://gpu-1:8000"]) as sidecar:
        async with Client(sidecar.url) as client:
            rollout = client.rollout([{"id": "p1", "token_ids": [1, 2, 3]}], n=8, sampling={"max_tokens": 4096})
            async for group in rollout:
                ...

A trainer that speaks to vLLM needs only `sidecar.url`.
"""

from importlib.metadata import PackageNotFoundError, version

from foretoken.client import Client, ForetokenError, Group, GroupRequest, Response, Rollout, RolloutError
from foretoken.sidecar import AsyncSidecar, Sidecar, SidecarError

try:
    __version__ = version("foretoken")
except PackageNotFoundError:  # From a checkout.
    __version__ = "0"

__all__ = [
    "AsyncSidecar",
    "Client",
    "ForetokenError",
    "Group",
    "GroupRequest",
    "Response",
    "Rollout",
    "RolloutError",
    "Sidecar",
    "SidecarError",
]
