"""The plugin's proposer, steered by a JSON file that a test writes, under either runner. For tests.

    probability_min  as the setting of that name
    exact            as the setting of that name: 1 from now on
    stop             the link's thread ends: from then on nobody empties its mailbox
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable
from typing import Any

from foretoken_vllm import keyed
from foretoken_vllm.proposer import ForetokenProposer
from foretoken_vllm.table_drafter import TableDrafter

_FILE = os.environ["STEERING_FILE"]


def steered(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step of either runner that looks for the file before."""

    @functools.wraps(step)
    def looking(self: ForetokenProposer, *arguments: Any, **options: Any) -> Any:
        if os.path.exists(_FILE):
            with open(_FILE) as file:
                steer(self, json.load(file))
        return step(self, *arguments, **options)

    return looking


def steer(proposer: ForetokenProposer, wanted: dict[str, Any]) -> None:
    if "probability_min" in wanted:
        least = wanted["probability_min"]
        proposer._settings = dataclasses.replace(proposer._settings, probability_min=least)
    if wanted.get("exact"):
        be_exact(proposer)
    if wanted.get("stop") and proposer._link is not None:
        proposer._link._stopping.set()


def be_exact(proposer: ForetokenProposer) -> None:
    if proposer._has_lineups:
        keyed.install(proposer._runner, proposer.faults)
        return
    from foretoken_vllm import speculator

    if speculator._current is not None and not speculator._current.is_exact:
        speculator._current.is_exact = True
        speculator._verify_exactly()


ForetokenProposer.propose = steered(ForetokenProposer.propose)
TableDrafter.take = steered(TableDrafter.take)
