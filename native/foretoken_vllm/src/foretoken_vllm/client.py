"""The draft client's state machine, without its socket: registers groups, sends the engine's tokens, fetches others'.

The protocol is docs/PROTOCOL.md: the server reports what it lacks, and tokens are sent again from its count.
Belongs to the link's thread; time is passed in, in seconds.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from . import mailbox as post
from .codec import (
    COUNT_BYTES,
    DELTA_OVERHEAD,
    FRAME_OVERHEAD,
    GROUP_OVERHEAD,
    PROTOCOL_VERSION,
    REASON,
    STATUS,
    TOKEN_BYTES,
    FrameError,
    client_frame,
    cut_name,
    decode,
)
from .faults import Faults
from .logs import TRACE_CONTEXT, LinkGroup, LinkSample, Logs
from .mailbox import Mailbox
from .settings import Settings
from .version import VERSION

FRAME_BYTES_MAX = 2**18
IN_FLIGHT_MAX = 16
REPLY_S_MAX = 10.0
REREGISTER_S = 1.0
REFUSED_S = 10.0
RESTORE_S = 1.0
ASK_GROUP_S = 1.0
# Seconds without new tokens here after which a group fetches nothing from elsewhere.
ACTIVE_S = 5.0
# Tokens of one Delta, so that the engine's step can take part of what waits.
DELTA_TOKENS_MAX = 2048
# One accepted draft in this many is looked up in the logs: a search takes microseconds of the interpreter's lock.
TRACE_EVERY = 7
# Seconds between requests to a server whose weight epoch differs from the engine's.
STALE_S = 0.5
TELEMETRY_S_MIN = 0.1
COUNT_MAX = 2.0**53 - 1
_ANSWERS = {
    "hello": "welcome",
    "register": "registered",
    "update": "updated",
    "fetch": "fetched",
    "telemetry": "budget",
    "past": "past",
}


class DraftClient:
    """`absorb` and `feed` talk to the engine, `receive` and `outgoing` to the server. Raises FrameError only."""

    def __init__(
        self,
        settings: Settings,
        mailbox: Mailbox,
        faults: Faults,
        telemetry: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._telemetry = telemetry
        self._telemetry_s = 0.0
        self._telemetry_at = 0.0
        self._accepted = 0
        self._quiet_until = 0.0
        self._settings = settings
        self._mailbox = mailbox
        self._faults = faults
        self.logs = Logs(settings.logs_mb * 2**20, settings.groups_max)
        self.epoch = 0
        self._era = 0
        self._is_first = True
        self._server_epoch = 0
        self._has_past = False
        self._is_ready = False
        self._in_flight: deque[tuple[str, float, LinkGroup | None]] = deque()
        # A long prompt may fill a frame of the server's size; other frames are kept small, for the GIL's sake.
        self._prompt_frame_max = FRAME_BYTES_MAX
        self._frame_max = FRAME_BYTES_MAX
        self._instance: int | None = None
        self._dirty: dict[LinkSample, LinkGroup] = {}
        self._hungry: dict[LinkSample, LinkGroup] = {}
        # Groups of which responses of earlier epochs are to be handed to the engine.
        self._pasts: deque[LinkGroup] = deque()
        self._asked_groups: dict[str, float] = {}
        self._fetch_at = 0.0
        self._flush_at = 0.0
        self._turn = 0
        self.counts = dict.fromkeys(
            (
                "tokens_sent",
                "tokens_fetched",
                "fetches",
                "restarts",
                "lost_advances",
                "repairs",
                "holes",
                "stale",
                "telemetry",
                "budgets",
                "traced",
                "traced_elsewhere",
                "tokens_past",
            ),
            0,
        )

    @property
    def is_ready(self) -> bool:
        """The server has answered the hello."""
        return self._is_ready

    # With the engine.

    def absorb(self, now: float) -> None:
        """Takes everything that the engine has queued."""
        up = self._mailbox.up
        # Its Advanced is in the queue already, or was dropped from it.
        era, epoch = self._mailbox.era
        for _ in range(len(up)):
            item = up.popleft()
            if isinstance(item, post.Advanced):
                self._era = item.era
                self._advance(item.epoch)
            elif item.epoch != self.epoch:
                continue
            elif isinstance(item, (post.Stepped, post.SteppedRows)):
                self._batch(item.made(), now)
            elif isinstance(item, post.Batch):
                for name, index, offset, tokens in item.given:
                    self._made(name, index, offset, tokens, now)
                self._batch(item.made, now)
            elif isinstance(item, post.Began):
                self._began(item, now)
            elif isinstance(item, post.LacksPast):
                group = self.logs.groups.get(item.group)
                if group is not None:
                    group.forget_past()
            elif isinstance(item, post.Ended):
                self.logs.drop(item.group)
            else:
                self._lacks(item)
        if self._era < era:
            # What was of this era in the queue is asked for again, group by group.
            self.counts["lost_advances"] += 1
            self._era = era
            self._advance(epoch)

    def feed(self) -> None:
        """Hands what the engine's replica lacks to it, as far as there is room; then what is of earlier epochs."""
        for sample, group in list(self._hungry.items()):
            if self.logs.groups.get(group.name) is not group:
                del self._hungry[sample]
                continue
            while sample.fed < sample.length and self._mailbox.has_room_down():
                end = min(sample.length, sample.fed + DELTA_TOKENS_MAX)
                tokens = sample.part(sample.fed, end)
                self._mailbox.down.append(post.Delta(self.epoch, group.name, sample.index, sample.fed, tokens))
                sample.fed = end
            if sample.fed < sample.length:
                return
            del self._hungry[sample]
        while self._pasts:
            group = self._pasts[0]
            if self.logs.groups.get(group.name) is not group or not group.past:
                self._pasts.popleft()
            elif not self._feed_past(group):
                return

    def _feed_past(self, group: LinkGroup) -> bool:
        """One response whole, in pieces: the core takes no other response's between them. False: there is no room."""
        size = DELTA_TOKENS_MAX * TOKEN_BYTES
        if not self._mailbox.has_room_down(1 + len(group.past[0]) // size):
            return False
        response = group.past.popleft()
        for at in range(0, len(response), size):
            piece = response[at : at + size]
            self._mailbox.down.append(post.Past(self.epoch, group.name, at // TOKEN_BYTES, piece))
        self.counts["tokens_past"] += len(response) // TOKEN_BYTES
        return True

    def _advance(self, epoch: int) -> None:
        self.epoch = epoch
        self._quiet_until = 0.0
        self._is_first = False
        self.logs.clear()
        self._dirty.clear()
        self._hungry.clear()
        self._pasts.clear()

    def _batch(self, made: Sequence[post.Made], now: float) -> None:
        for name, index, offset, tokens in made:
            self._trace(name, index, offset, tokens)
            self._made(name, index, offset, tokens, now)

    def _made(self, name: str, index: int, offset: int, tokens: Sequence[int], now: float) -> None:
        group = self.logs.groups.get(name)
        if group is None:
            asked = self._asked_groups.get(name)
            if (asked is None or now > asked + ASK_GROUP_S) and self._mailbox.has_room_down():
                if len(self._asked_groups) > self._settings.groups_max:
                    self._asked_groups.clear()
                self._asked_groups[name] = now
                self._mailbox.down.append(post.WantsGroup(self.epoch, name))
            return
        group.used_at = now
        sample = group.sample(index)
        sample.is_own = True
        added = sample.take(offset, array("i", tokens).tobytes())
        if added >= 0:
            sample.made_here(offset, offset + len(tokens))
        if added < 0:
            self.counts["holes"] += 1
            if self._mailbox.has_room_down():
                self._mailbox.down.append(post.Wants(self.epoch, name, index, sample.length))
        elif added > 0:
            # Its own tokens are in the engine's replica already.
            sample.fed = sample.length
            self._dirty[sample] = group
            self.logs.grow(group, added * TOKEN_BYTES)

    def _trace(self, name: str, index: int, offset: int, tokens: Sequence[int]) -> None:
        """All but the last token of a step are drafts that were accepted: had siblings elsewhere written them?"""
        accepted = len(tokens) - 1
        if accepted == 0:
            return
        self._accepted += 1
        group = self.logs.groups.get(name) if self._accepted % TRACE_EVERY == 0 else None
        sample = None if group is None else group.samples.get(index)
        # In a log with a hole, the text before the draft is not what it was drafted after.
        if group is None or sample is None or sample.length != offset:
            return
        elsewhere = group.origin(sample.part(max(0, offset - TRACE_CONTEXT), offset), tokens[:accepted])
        if elsewhere is not None:
            self.counts["traced"] += accepted
            self.counts["traced_elsewhere"] += accepted if elsewhere else 0

    def _began(self, item: post.Began, now: float) -> None:
        group = self.logs.begin(item.group, item.prompt, now)
        group.forget_past()
        for sample in group.samples.values():
            sample.fed = 0
            self._hungry[sample] = group

    def _lacks(self, item: post.Lacks) -> None:
        group = self.logs.groups.get(item.group)
        sample = None if group is None else group.samples.get(item.sample)
        if group is not None and sample is not None and item.have < sample.fed:
            sample.fed = item.have
            self._hungry[sample] = group

    # With the server.

    def opened(self) -> bytes:
        """A connection began; its first frame."""
        self._in_flight.clear()
        self._is_ready = False
        frame = client_frame()
        frame.hello.protocol_version = PROTOCOL_VERSION
        frame.hello.engine = cut_name(self._settings.engine)
        frame.hello.release = VERSION
        self._in_flight.append(("hello", 0.0, None))
        return bytes(frame.SerializeToString())

    def closed(self) -> None:
        """Messages in flight may be lost; the server's counts will show it."""
        self._is_ready = False
        self._in_flight.clear()

    def is_overdue(self, now: float) -> bool:
        """The server has left a frame unanswered for too long."""
        if not self._in_flight:
            return False
        kind, sent_at, _group = self._in_flight[0]
        return kind != "hello" and now > sent_at + REPLY_S_MAX

    def outgoing(self, now: float) -> list[bytes]:
        """Frames that are due; they count as sent."""
        self.logs.expire(now - self._settings.ttl_s)
        frames: list[bytes] = []
        if not self._is_ready:
            return frames
        if self._telemetry_s > 0 and now >= self._telemetry_at and self._can_post():
            self._report(now, frames)
        if self._server_epoch > self.epoch or now < self._quiet_until:
            return frames
        for group in self.logs.groups.values():
            if group.state == "new" and now >= group.retry_at and self._can_post():
                self._register(group, now, frames)
            if group.state == "ready" and group.past_state == "new" and self._has_past and self._can_post():
                self._ask_past(group, now, frames)
        if now >= self._flush_at and self._dirty and self._can_post():
            self._flush_at = now + self._settings.flush_ms / 1000
            self._update(now, frames)
        is_fetching = any(kind == "fetch" for kind, _at, _group in self._in_flight)
        if now >= self._fetch_at and not is_fetching and self._can_post():
            self._fetch(now, frames)
        return frames

    def receive(self, frame: bytes, now: float) -> None:
        """An answer. Raises FrameError: the connection is of no use any more."""
        kind, body = decode(frame)
        if not self._in_flight or _ANSWERS[self._in_flight[0][0]] != kind:
            raise FrameError(f"the server sent {kind}, which was not asked for")
        _kind, _at, group = self._in_flight.popleft()
        if kind == "welcome":
            self._welcome(body)
            return
        if kind == "budget":
            self._budget(body, now)
            return
        self._server_epoch = body.epoch
        if body.status == STATUS["STATUS_STALE_EPOCH"]:
            self.counts["stale"] += 1
            if body.epoch < self.epoch:
                # A sidecar starts its epochs itself: this one has not started it yet, or never will.
                self._quiet_until = now + STALE_S
        if kind == "registered" and group is not None:
            self._registered(group, body, now)
        elif kind == "past" and group is not None:
            self._past(group, body)
        elif body.status != STATUS["STATUS_OK"] or body.epoch != self.epoch:
            return
        elif kind == "updated":
            self._updated(body, now)
        else:
            self._fetched(body, now)

    def _report(self, now: float, frames: list[bytes]) -> None:
        self._telemetry_at = now + self._telemetry_s
        frame = client_frame()
        body = frame.telemetry
        body.epoch = self.epoch
        for name, value in self._telemetry().items():
            setattr(body, name, min(value, COUNT_MAX))
        body.traced = self.counts["traced"]
        body.traced_elsewhere = self.counts["traced_elsewhere"]
        self.counts["telemetry"] += 1
        self._in_flight.append(("telemetry", now, None))
        frames.append(bytes(frame.SerializeToString()))

    def _budget(self, body: Any, now: float) -> None:
        self.counts["budgets"] += 1
        self._mailbox.budget = post.Budget(int(body.step_tokens), now + body.ttl_ms / 1000)

    def _can_post(self) -> bool:
        return len(self._in_flight) < IN_FLIGHT_MAX

    def _register(self, group: LinkGroup, now: float, frames: list[bytes]) -> None:
        if FRAME_OVERHEAD + 3 * len(group.name) + len(group.prompt) > self._prompt_frame_max:
            self._refuse(group, "its prompt does not fit in a frame")
            return
        frame = client_frame()
        body = frame.register_group
        body.epoch = self.epoch
        body.group_id = group.name
        body.ttl_ms = self._settings.ttl_s * 1000
        body.prompt = group.prompt
        group.state = "asked"
        self._in_flight.append(("register", now, group))
        frames.append(bytes(frame.SerializeToString()))

    def _ask_past(self, group: LinkGroup, now: float, frames: list[bytes]) -> None:
        if group.past:
            return
        frame = client_frame()
        body = frame.fetch_past
        body.epoch = self.epoch
        body.group_id = group.name
        body.have = group.past_have
        group.past_state = "asked"
        self._in_flight.append(("past", now, group))
        frames.append(bytes(frame.SerializeToString()))

    def _past(self, group: LinkGroup, body: Any) -> None:
        """Responses that come after others than the client has are dropped, and asked for again."""
        group.past_state = "new"
        is_next = body.status == STATUS["STATUS_OK"] and body.epoch == self.epoch and body.have == group.past_have
        if not is_next or self.logs.groups.get(group.name) is not group:
            return
        group.past_have += len(body.responses)
        group.past.extend(body.responses)
        if group.past:
            self._pasts.append(group)
        if not body.more:
            group.past_state = "done"

    def _update(self, now: float, frames: list[bytes]) -> None:
        frame = client_frame()
        frame.update.epoch = self.epoch
        room = self._frame_max - FRAME_OVERHEAD
        by_group: dict[str, Any] = {}
        for sample, group in list(self._dirty.items()):
            is_kept = self.logs.groups.get(group.name) is group
            if not is_kept or sample.sent >= sample.length or group.state != "ready":
                del self._dirty[sample]
                continue
            if sample.send_at > now:
                continue
            room -= DELTA_OVERHEAD
            if group.name not in by_group:
                room -= 3 * len(group.name) + GROUP_OVERHEAD
            end = min(sample.length, sample.sent + room // TOKEN_BYTES)
            if end <= sample.sent:
                self._flush_at = now
                break
            if group.name not in by_group:
                by_group[group.name] = frame.update.groups.add(group_id=group.name)
            tokens = sample.part(sample.sent, end)
            by_group[group.name].deltas.add(sample_index=sample.index, offset=sample.sent, tokens=tokens)
            room -= len(tokens)
            self.counts["tokens_sent"] += end - sample.sent
            sample.sent = end
        if by_group:
            self._in_flight.append(("update", now, None))
            frames.append(bytes(frame.SerializeToString()))

    def _fetch(self, now: float, frames: list[bytes]) -> None:
        since = now - ACTIVE_S
        ready = [group for group in self.logs.groups.values() if group.state == "ready" and group.used_at >= since]
        if not ready:
            return
        frame = client_frame()
        frame.fetch.epoch = self.epoch
        room = self._frame_max - FRAME_OVERHEAD
        taken = 0
        for i in range(len(ready)):
            group = ready[(self._turn + i) % len(ready)]
            have = group.lengths()
            room -= 3 * len(group.name) + GROUP_OVERHEAD + COUNT_BYTES * len(have)
            if room < 0:
                break
            frame.fetch.states.add(group_id=group.name, have=have)
            taken += 1
            for sample in group.samples.values():
                sample.sent_at_fetch = sample.sent
        # Another group comes first each time: a frame may have room for few.
        self._turn += 1 if taken == len(ready) else taken
        self._fetch_at = now + self._settings.fetch_ms / 1000
        self.counts["fetches"] += 1
        self._in_flight.append(("fetch", now, None))
        frames.append(bytes(frame.SerializeToString()))

    def _welcome(self, body: Any) -> None:
        self._is_ready = True
        self._server_epoch = body.epoch
        self._has_past = body.has_past
        self._prompt_frame_max = body.frame_bytes_max
        self._frame_max = min(body.frame_bytes_max, FRAME_BYTES_MAX)
        if self._instance is not None and self._instance != body.instance_id:
            self.counts["restarts"] += 1
        self._instance = body.instance_id
        self._fetch_at = 0.0
        self._quiet_until = 0.0
        self._telemetry_s = 0.0 if body.telemetry_ms == 0 else max(TELEMETRY_S_MIN, body.telemetry_ms / 1000)
        self._telemetry_at = 0.0
        if self._is_first and body.epoch > self.epoch and self._mailbox.has_room_down():
            # The engine began among others, with the weights that they have now.
            self._mailbox.down.append(post.Adopt(body.epoch))
        self._is_first = False
        for group in self.logs.groups.values():
            group.state = "new"
            group.retry_at = 0.0
            if group.past_state == "asked":
                group.past_state = "new"

    def _registered(self, group: LinkGroup, body: Any, now: float) -> None:
        if self.logs.groups.get(group.name) is not group or group.state != "asked":
            return
        group.state = "new"
        if body.status == STATUS["STATUS_CONFLICT"]:
            self._refuse(group, "the server has another prompt under this name")
        elif body.status == STATUS["STATUS_FULL"]:
            self._faults.add("server full", f"group {group.name}")
            group.retry_at = now + REREGISTER_S
        elif body.status == STATUS["STATUS_OK"] and body.epoch == self.epoch:
            group.state = "ready"
            self._fetch_at = 0.0
            have = list(body.have)
            for index, sample in group.samples.items():
                sample.send_at = 0.0
                self._server_has(group, sample, have[index] if index < len(have) else 0, now)

    def _updated(self, body: Any, now: float) -> None:
        for refusal in body.refusals:
            group = self.logs.groups.get(refusal.group_id)
            if group is None:
                continue
            if refusal.reason == REASON["REASON_UNKNOWN"]:
                self._lose(group, now)
                continue
            sample = group.samples.get(refusal.sample_index)
            if sample is None or refusal.reason == REASON["REASON_HELD"]:
                continue
            if refusal.reason == REASON["REASON_FULL"]:
                self._faults.add("server full", f"group {group.name}")
                sample.send_at = now + REFUSED_S
            self._server_has(group, sample, min(sample.sent, refusal.have), now)

    def _fetched(self, body: Any, now: float) -> None:
        for name in body.unknown:
            lost = self.logs.groups.get(name)
            if lost is not None:
                self._lose(lost, now)
        for fetched in body.groups:
            group = self.logs.groups.get(fetched.group_id)
            if group is None or group.state != "ready":
                continue
            for delta in fetched.deltas:
                self._take(group, delta)
                if self.logs.groups.get(group.name) is not group:
                    break
            for behind in fetched.behind:
                sample = group.samples.get(behind.sample_index)
                if sample is not None and behind.have < sample.sent_at_fetch:
                    self.counts["repairs"] += 1
                    self._server_has(group, sample, min(sample.sent, behind.have), now)
        if body.more:
            self._fetch_at = 0.0

    def _take(self, group: LinkGroup, delta: Any) -> None:
        sample = group.sample(delta.sample_index)
        added = sample.take(delta.offset, delta.tokens)
        if added < 0:
            return
        end = delta.offset + len(delta.tokens) // TOKEN_BYTES
        sample.sent = max(sample.sent, end)
        if added > 0:
            self.counts["tokens_fetched"] += added
            self._hungry[sample] = group
            self.logs.grow(group, added * TOKEN_BYTES)
        if sample.length > sample.sent:
            self._dirty[sample] = group

    def _server_has(self, group: LinkGroup, sample: LinkSample, have: int, now: float) -> None:
        """Sends again what the server lacks: this engine's tokens at once, others' only if no other engine does."""
        if sample.is_own or have >= sample.length:
            sample.sent = have
            if have < sample.length:
                self._dirty[sample] = group
            return
        sample.sent = sample.length
        if sample.lost_have != have:
            sample.lost_have = have
            sample.lost_since = now
        elif now >= sample.lost_since + RESTORE_S:
            sample.lost_have = -1
            sample.sent = have
            self._dirty[sample] = group

    def _refuse(self, group: LinkGroup, problem: str) -> None:
        self._faults.add("group refused", f"{group.name}: {problem}")
        group.state = "refused"

    def _lose(self, group: LinkGroup, now: float) -> None:
        if group.state == "ready":
            group.state = "new"
            group.retry_at = now + REREGISTER_S
