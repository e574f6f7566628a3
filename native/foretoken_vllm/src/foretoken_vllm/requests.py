"""What the proposer remembers of a request that runs here. By request id: its place in the batch means nothing."""

from __future__ import annotations

from array import array
from typing import Any

from .mailbox import Made
from .replica import Group, Sample


class Request:
    """A request that runs here: its response, where its output begins in vLLM's request, how far it may go."""

    __slots__ = ("base", "group", "level", "limit", "prompt_tokens", "sample")

    def __init__(self, group: Group, sample: Sample) -> None:
        self.group = group
        self.sample = sample
        # Output tokens before this chunk, less the tokens that it was given.
        self.base = 0
        self.prompt_tokens = 0
        # Tokens of the request beyond which nothing is drafted.
        self.limit = 0
        # Its tokens less the proposer's steps, when it began: what it is above that by, it has made by drafts.
        self.level = 0


def untracked() -> Request:
    """A request without a group: it has a dead group that belongs to no request."""
    group = Group("", array("i"), 0.0)
    group.is_alive = False
    return Request(group, Sample(0))


def lacking(request: Request, line: Any, total: int) -> Made:
    """All that the link has not been handed of the request's response."""
    sent = request.sample.sent
    tokens = line[request.prompt_tokens + sent : total].tolist()
    return request.group.name, request.sample.index, sent, tokens
