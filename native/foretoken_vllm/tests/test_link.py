"""Engines and the sidecar's draft service, the real ones on a loopback socket; and peers that are neither."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.sync.server import Server, ServerConnection, serve

from foretoken_vllm.mailbox import UP_MAX, Advanced, Mailbox
from foretoken_vllm.proposer import ForetokenProposer
from harness import Chunk, Runner, engine, extra
from sidecar import Host, Proxy, bun, host, until

PROMPT = [1, 2, 3]
STORY = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]
# Every request has an id of its own, as in vLLM.
NUMBERS = itertools.count()
FAST = {"flush_ms": 1, "fetch_ms": 1}

pytestmark = pytest.mark.skipif(bun() is None, reason="there is no bun here")


@contextmanager
def linked(url: str, **foretoken: Any) -> Iterator[tuple[ForetokenProposer, Runner]]:
    """An engine with a link to `url`."""
    proposer, runner = engine(draft_url=url, **{**FAST, **foretoken})
    try:
        yield proposer, runner
    finally:
        proposer.close()


def link_counts(proposer: ForetokenProposer) -> dict[str, int]:
    assert proposer._link is not None
    return proposer._link.client.counts


def tell_story(runner: Runner, samples: range, tokens: list[int] | None = None, **more: Any) -> None:
    """Responses that are finished here."""
    for sample in samples:
        name = f"s{sample}-{next(NUMBERS)}"
        runner.add(Chunk(name, list(PROMPT), extra("g", sample, **more)))
        for token in tokens or STORY:
            runner.step({name: [token]})
        runner.finish(name)


def drafts_from_elsewhere(runner: Runner, **more: Any) -> bool:
    """Begins a response, and looks whether its second token brings a draft."""
    number = next(NUMBERS)
    sample = 50 + number % 200
    name = f"r{number}"
    runner.add(Chunk(name, list(PROMPT), extra("g", sample, **more)))
    runner.step({name: STORY[:1]})
    found = runner.step({name: STORY[1:3]})[name]
    runner.finish(name)
    return found[:3] == STORY[3:6]


def test_an_engine_drafts_from_siblings_on_another_one() -> None:
    with host() as sidecar, linked(sidecar.url) as (one, maker), linked(sidecar.url) as (_, taker):
        tell_story(maker, range(4))
        until(lambda: sidecar.tell()["tokensTaken"] >= 4 * len(STORY), "the tokens never came to the service")
        until(lambda: drafts_from_elsewhere(taker), "no draft from the other engine's responses")
        assert link_counts(one)["tokens_sent"] >= 4 * len(STORY)
        assert one.faults.total == 0


def test_an_engine_drafts_from_what_the_sidecar_alone_knows() -> None:
    with host() as sidecar, linked(sidecar.url) as (proposer, runner):
        for sample in range(3):
            sidecar.tell(have={"group": "g", "sample": sample, "tokens": STORY})
        until(lambda: drafts_from_elsewhere(runner), "no draft from the sidecar's responses")
        assert link_counts(proposer)["tokens_fetched"] >= 3 * len(STORY)


def test_an_engine_drafts_from_responses_of_earlier_epochs() -> None:
    with host() as sidecar, linked(sidecar.url) as (proposer, runner):
        # Longer than a piece of the mailbox, and than a frame of this client's.
        long = [20 + i % 900 for i in range(59_000)]
        sidecar.tell(past=STORY + long)
        for _ in range(3):
            sidecar.tell(past=STORY)
        until(lambda: drafts_from_elsewhere(runner), "no draft from the responses of earlier epochs")
        replica = proposer._replica
        assert replica is not None
        until(
            lambda: drafts_from_elsewhere(runner) and replica.past_tokens == len(long) + 4 * len(STORY),
            "not all of the past came",
        )
        assert link_counts(proposer)["tokens_past"] == len(long) + 4 * len(STORY)
        # Of another epoch there are the same ones: the group begins anew, and with it its past.
        sidecar.tell(advance=1)
        newer = {"foretoken_run": "r", "foretoken_epoch": 1}
        until(lambda: drafts_from_elsewhere(runner, **newer), "no draft in the next epoch")
        assert proposer.faults.total == 0


def test_cuts_and_a_service_without_a_past_leave_the_past_for_later() -> None:
    with host() as sidecar:
        sidecar.tell(past=STORY * 40)
        sidecar.tell(past=STORY * 30)
        proxy = Proxy(sidecar.port)
        proxy.cut_after = 2500
        with linked(proxy.url) as (proposer, runner):
            tell_story(runner, range(2))
            until(lambda: proxy.connections >= 4, "nothing was cut")
            proxy.cut_after = None
            proxy.cut()
            until(lambda: link_counts(proposer)["tokens_past"] == 70 * len(STORY), "the past never came")
        proxy.close()


def test_cuts_at_any_byte_lose_nothing() -> None:
    with host() as sidecar:
        proxy = Proxy(sidecar.port)
        proxy.cut_after = 2500
        with linked(proxy.url) as (one, maker), linked(sidecar.url) as (_, taker):
            tell_story(maker, range(6), STORY * 4)
            until(lambda: proxy.connections >= 4, "nothing was cut")
            proxy.cut_after = None
            proxy.cut()
            until(lambda: sidecar.tell()["tokensTaken"] >= 6 * 4 * len(STORY), "tokens were lost")
            until(lambda: drafts_from_elsewhere(taker), "no draft after the cuts")
            assert one.faults.counts["link"] >= 1
        proxy.close()


def test_a_service_that_begins_anew_is_told_everything_again() -> None:
    first = Host()
    port = first.port
    try:
        with linked(first.url) as (one, maker):
            tell_story(maker, range(4))
            until(lambda: first.tell()["tokensTaken"] >= 4 * len(STORY), "the tokens never came")
            first.kill()
            with host("--port", str(port)) as second, linked(second.url) as (_, taker):
                until(lambda: drafts_from_elsewhere(taker), "the second service was told nothing")
                assert link_counts(one)["restarts"] == 1
    finally:
        first.close()


def test_other_weights_part_engines_until_both_have_them() -> None:
    with host() as sidecar, linked(sidecar.url) as (one, maker), linked(sidecar.url) as (_, taker):
        tell_story(maker, range(4), foretoken_run="r", foretoken_epoch=0)
        until(lambda: sidecar.tell()["tokensTaken"] >= 40, "the tokens never came")
        assert sidecar.tell(advance=1)["groups"] == 0
        tell_story(maker, range(4, 6), foretoken_run="r", foretoken_epoch=0)
        assert not drafts_from_elsewhere(taker, foretoken_run="r", foretoken_epoch=1)
        assert one.stats()["epoch"] == 0
        tell_story(maker, range(4), foretoken_run="r", foretoken_epoch=1)
        until(
            lambda: drafts_from_elsewhere(taker, foretoken_run="r", foretoken_epoch=1),
            "no drafts of the new weights",
        )


def test_a_service_that_is_behind_the_engine_is_not_driven_forward() -> None:
    with host() as sidecar, linked(sidecar.url) as (one, maker):
        tell_story(maker, range(2), foretoken_run="before", foretoken_epoch=5)
        until(lambda: link_counts(one)["stale"] >= 1, "nothing was refused")
        assert sidecar.tell()["epoch"] == 0
        tell_story(maker, range(2), foretoken_run="now", foretoken_epoch=0)
        until(lambda: sidecar.tell()["tokensTaken"] >= 20, "the engine never came back")


def test_the_sidecar_hears_of_the_engine_and_its_budget_holds() -> None:
    with host("--no-drafts") as sidecar, linked(sidecar.url, engine="http://e:1") as (proposer, runner):
        until(lambda: proposer._mailbox.budget is not None, "no budget came")
        tell_story(runner, range(4))
        assert not drafts_from_elsewhere(runner)
        until(
            lambda: [e["steps"] for e in sidecar.tell()["engines"]] == [proposer.counters.steps],
            "the figures never came",
        )
        found = sidecar.tell()["engines"][0]
        assert (found["engine"], found["isLossless"], found["waiting"]) == ("http://e:1", True, None)
        assert found["drafted"] == 0


def test_a_wrong_token_is_told_once_and_the_engine_drafts_alone() -> None:
    with host("--token", "right") as sidecar:
        with linked(sidecar.url, token="wrong") as (proposer, runner):
            until(lambda: proposer.faults.counts.get("dial", 0) >= 2, "nobody was refused")
            tell_story(runner, range(4))
            assert drafts_from_elsewhere(runner)
        with linked(sidecar.url, token="right") as (proposer, runner):
            tell_story(runner, range(1))
            until(lambda: sidecar.tell()["tokensTaken"] >= len(STORY), "the right token was refused")


def test_nobody_there_costs_nothing_but_the_siblings_elsewhere() -> None:
    with linked("ws://127.0.0.1:9/v1/draft") as (proposer, runner):
        tell_story(runner, range(4))
        assert drafts_from_elsewhere(runner)
        assert proposer.faults.total == 0


@contextmanager
def peer(behave: Callable[[ServerConnection], None]) -> Iterator[str]:
    """A WebSocket server that is no draft service."""
    server: Server = serve(behave, "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}/v1/draft"
    finally:
        server.shutdown()


def rubbish(socket: ServerConnection) -> None:
    source = random.Random(7)
    socket.recv()
    while True:
        socket.send(source.randbytes(source.randrange(200)))


def text(socket: ServerConnection) -> None:
    socket.recv()
    socket.send("hello")
    socket.recv()


def nothing(socket: ServerConnection) -> None:
    for _ in socket:
        pass


@pytest.mark.parametrize("behave", [rubbish, text])
def test_a_peer_that_talks_nonsense_is_left_and_dialled_again(behave: Callable[[ServerConnection], None]) -> None:
    with peer(behave) as url, linked(url) as (proposer, runner):
        tell_story(runner, range(4))
        assert drafts_from_elsewhere(runner)
        assert proposer._link is not None
        link = proposer._link
        until(lambda: link.dials >= 3, "it was not dialled again")


def test_a_peer_that_says_nothing_keeps_no_step_waiting() -> None:
    with peer(nothing) as url, linked(url) as (_, runner):
        began = time.monotonic()
        tell_story(runner, range(4))
        assert drafts_from_elsewhere(runner)
        assert time.monotonic() - began < 5


def test_a_thread_that_has_ended_leaves_a_bounded_mailbox() -> None:
    mailbox = Mailbox()
    with linked("ws://127.0.0.1:9/v1/draft") as (proposer, runner):
        proposer.close()
        proposer._mailbox = mailbox
        for sample in range((UP_MAX + 100) // 400 + 1):
            name = f"r{sample}"
            runner.add(Chunk(name, list(PROMPT), extra("g", sample)))
            for step in range(400):
                runner.step({name: [STORY[step % len(STORY)]]})
            runner.finish(name)
        assert len(mailbox.up) == UP_MAX
        assert proposer.faults.total == 0


def test_an_advance_that_a_full_mailbox_dropped_is_made_up_for() -> None:
    with host() as sidecar, linked(sidecar.url) as (proposer, maker), linked(sidecar.url) as (_, taker):
        assert proposer._link is not None
        client = proposer._link.client
        absorb = client.absorb
        tell_story(maker, range(2), foretoken_run="a", foretoken_epoch=0)
        until(lambda: sidecar.tell()["tokensTaken"] >= 2 * len(STORY), "the tokens never came to the service")
        # The link's thread is held up while the engine begins an epoch and makes more than the mailbox holds.
        client.absorb = lambda now: None  # type: ignore[method-assign]
        sidecar.tell(advance=1)
        for sample in range(UP_MAX // 200 + 1):
            tell_story(maker, range(sample, sample + 1), STORY * 20, foretoken_run="a", foretoken_epoch=1)
        assert not any(isinstance(item, Advanced) for item in proposer._mailbox.up)
        client.absorb = absorb  # type: ignore[method-assign]
        until(lambda: client.epoch == 1, "the link stayed at the old weights")
        assert client.counts["lost_advances"] == 1
        before = sidecar.tell()["tokensTaken"]

        def told() -> bool:
            tell_story(maker, range(60, 64), foretoken_run="a", foretoken_epoch=1)
            return bool(sidecar.tell()["tokensTaken"] > before)

        until(told, "the link was mute")
        until(
            lambda: drafts_from_elsewhere(taker, foretoken_run="a", foretoken_epoch=1),
            "no draft from the other engine's responses",
        )
        assert proposer.faults.total == 0
