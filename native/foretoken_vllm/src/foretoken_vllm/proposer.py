"""vLLM's custom_class proposer: drafts of a whole batch by one call into the core, once an engine step.

Knows requests by their ids and what the coordinator sent with them (`extra_args`), never by their place. Nothing that
goes wrong leaves this file as an exception, and no step waits for the link: the answer is no drafts. Above 500 lines:
the step that goes request by request and the short one (batch_plan.py) read and write the same state.
"""

from __future__ import annotations

import sys
import time
from array import array
from bisect import bisect_right
from itertools import pairwise
from operator import neg, sub
from typing import Any

from . import abi, engine, repair, runner_v2, settings, shortcut
from .batch_plan import BatchPlan, plan_of
from .budget import DraftBudget, weights_of
from .core import BUDGET_NONE, CoreTrapError, StepDrafts, float_word
from .faults import Faults
from .link import Link
from .mailbox import Adopt, Batch, Began, Delta, Down, Ended, Lacks, LacksPast, Made, Mailbox, Past, Stepped, Wants
from .replica import WEIGHT_ONE, Group, Replica, group_name
from .requests import Request, lacking, untracked
from .settings import Settings, load
from .stats import Counters

# As vLLM's own rejection sampler has it; the core's limit is lower.
TOKENS_MAX = abi.DRAFT_TOKENS_MAX
TRAPS_MAX = 3
SWEEP_STEPS = 128
# Longer pauses between two steps are an engine's that had nothing to do.
STEP_S_MAX = 1.0
# How often it is counted what steps took.
_LEDGER_STEPS = 16
_NO_QUERIES = array("i")
# Without a sidecar: steps without a new response after which a batch counts as one that only shrinks; times its
# requests, since the fewer run, the more seldom one ends and makes room.
_ENDING_STEPS = 16
_ENDING_REQUEST_STEPS = 256
# Seconds in which a group with another prompt keeps its name.
_CONFLICT_S = 10.0


class ForetokenProposer:
    """The `model` of a `--speculative-config` whose `method` is `custom_class` (docs/PLUGIN.md)."""

    # Whether a request without a new token is read, and whether batches have plans.
    _drafts_ahead = False
    _has_lineups = True

    def __init__(self, vllm_config: Any) -> None:
        self.faults = Faults()
        self.counters = Counters()
        self._runner: Any = None
        self._is_on = False
        self._link: Link | None = None
        self._mailbox = Mailbox()
        self._requests: dict[str, Request] = {}
        self._untracked = untracked()
        # The batch of the step before: what its next step needs if it stays as it is.
        self._plan: BatchPlan | None = None
        # Steps that are not counted yet: requests, seconds of the engine's step, draft tokens verified in it (below 0:
        # nothing to learn from), seconds that making those took, seconds of this call, tokens drafted in it.
        self._ledger: list[tuple[int, float, int, float, float, int]] = []
        self._epoch = 0
        # None: no request has carried a weight epoch.
        self._run: str | None = None
        self._steps = 0
        self._traps = 0
        # Draft tokens of the step that the engine does now, and seconds that making them took.
        self._verified = 0
        self._took = 0.0
        self._returned_at = 0.0
        # Draft tokens of the step that is under way.
        self._drafted = 0
        self._budget = DraftBudget()
        # The step in which a response began here.
        self._began_at = 0
        self._met = False
        # What the engine's step took can be learnt from.
        self._is_sample = False
        self._settings = Settings()
        self._replica: Replica | None = None
        try:
            self._open(vllm_config)
        except Exception as error:  # noqa: BLE001 - vLLM must start without drafts rather than not at all
            self.faults.add("start", error)

    def _open(self, config: Any) -> None:
        self._settings = load(getattr(config, "additional_config", None), self.faults)
        wanted = int(config.speculative_config.num_speculative_tokens)
        self._tokens_max = min(wanted, TOKENS_MAX)
        self._length_max = int(config.model_config.max_model_len)
        vocabulary = int(config.model_config.get_vocab_size())
        self._replica = self._new_replica(vocabulary)
        self._bits = float_word(self._settings.probability_min)
        # Drafts that the sampler would judge wrongly are worse than none.
        self._is_lossless = self._judges_rightly()
        problem = self._problem(config)
        if problem:
            self.faults.add("no drafts", problem)
        self._may_draft = self._is_lossless and self._settings.drafts > 0 and problem == ""
        self._is_on = True

    def _new_replica(self, vocabulary: int) -> Replica:
        return Replica(self._settings, self.faults, vocabulary)

    def _problem(self, config: Any) -> str:
        """Why nothing is drafted here."""
        model = config.model_config
        is_recurrent = getattr(model, "is_hybrid", False) or getattr(model, "has_inner_state", False)
        if is_recurrent and settings.is_older(0, 32):
            return "before vLLM 0.32, steps with fewer drafts corrupt the state of a recurrent (hybrid) model"
        return runner_v2.first_runner_problem() if self._has_lineups else ""

    def _judges_rightly(self) -> bool:
        return repair.ensure(self.faults)

    def load_model(self, *_arguments: Any, **_options: Any) -> None:
        """Called by the runner, which is `self` of the calling frame (no argument names it)."""
        try:
            if self._runner is None:
                for depth in range(1, 4):
                    found = sys._getframe(depth).f_locals.get("self")
                    if hasattr(found, "input_batch") and hasattr(found, "requests"):
                        self.bind_runner(found)
                        return
        except Exception as error:  # noqa: BLE001 - see propose
            self.faults.add("runner", error)

    def bind_runner(self, runner: Any) -> None:
        """Idempotent; never raises. Begins the link, in the process that has the model."""
        try:
            self._bind(runner)
        except Exception as error:  # noqa: BLE001 - see propose
            self.faults.add("runner", error)

    def _bind(self, runner: Any) -> None:
        if self._runner is runner or not self._is_on:
            return
        if not hasattr(runner, "input_batch") or not hasattr(runner, "requests"):
            self.faults.add("runner", "it has no input_batch or no requests: no drafts")
            return
        if not _is_output_rank():
            self._is_on = False
            return
        self._runner = runner
        self._watch_reload(runner)
        if self._has_lineups:
            shortcut.take(runner, self.faults)
        self._begin_link()

    def _begin_link(self) -> None:
        if self._link is None and (self._settings.draft_url or self._settings.stats_file):
            self._link = Link(self._settings, self._mailbox, self.faults, self.stats, self.telemetry)
            self._link.start()

    def dummy_run(self, *_arguments: Any, **_options: Any) -> None:
        """There is no model of its own to warm up."""

    def close(self) -> None:
        """Ends the link's thread; vLLM does not call it, the thread ends with the process."""
        if self._link is not None:
            self._link.stop()

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        slot_mappings: Any = None,
        **_options: Any,
    ) -> list[list[int]]:
        """Drafts for each request, at most num_speculative_tokens and within max_model_len; never raises."""
        began = time.perf_counter()
        replica = self._replica
        if self._runner is None or replica is None or not self._is_on:
            return _none_for(sampled_token_ids)
        self._is_sample = False
        try:
            drafts = None
            if self._plan is not None:
                drafts = self._quick(self._plan, replica, sampled_token_ids, num_tokens_no_spec)
            if drafts is None:
                self._leave()
                drafts = self._propose(replica, sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except CoreTrapError as error:
            self._trapped(error)
            drafts, self._drafted = _none_for(sampled_token_ids), 0
        except Exception as error:  # noqa: BLE001 - one that raises here ends the server
            self.faults.add("propose", error)
            drafts, self._drafted = _none_for(sampled_token_ids), 0
            self._recover()
        try:
            self._end_step(began, drafts)
        except Exception as error:  # noqa: BLE001 - only counters
            self.faults.add("finish", error)
        return drafts

    def _quick(
        self, plan: BatchPlan, replica: Replica, sampled: list[list[int]], lengths: Any
    ) -> list[list[int]] | None:
        """The step of a batch that is as it was; drafts and reports what `_propose` would. None: nothing was changed.

        It is written in one piece: with cold caches each function that it enters costs it microseconds.
        """
        req_ids = self._runner.input_batch.req_ids
        requests = len(sampled)
        if plan.ids != req_ids or plan.losses != replica.losses or requests != plan.count:
            reduced = plan.without_ended(req_ids, replica.losses) if requests == len(req_ids) else None
            if reduced is None:
                return None
            self._plan = plan = reduced
            plan.prepare(plan.tokens_max, self._probability_bits(requests))
        steps = self._steps + 1
        # Every few steps it may not, for what is done seldom.
        if self._mailbox.down or steps % SWEEP_STEPS == 0:
            return None
        if not plan.heads:
            drafts = _none_for(sampled)
        else:
            if plan.lengths is not lengths:
                plan.hold(lengths)
            totals = plan.line.tolist()
            counts = list(map(len, sampled))
            if not plan.follows(counts, totals):
                return None
            # Without a bound from the sidecar, all of them.
            allowed = BUDGET_NONE if self._may_draft and self._mailbox.budget is None else self._allowed()
            wants = self._budget.wants_drafts()
            if wants:
                plan.prepare(min(self._tokens_max, allowed), self._probability_bits(requests))
            words = replica.words
            for head, count, tokens in zip(plan.heads, counts, sampled, strict=True):
                words += head
                words.append(count)
                words += tokens
            if self._link is not None:
                self._mailbox.up.append(Stepped(self._epoch, plan.who, plan.totals, sampled.copy()))
            self.counters.accepted += sum(counts) - requests
            plan.totals = totals
            plan.is_behind = True
            found = replica.cross_prepared(plan.owners, plan.queries() if wants else _NO_QUERIES, allowed)
            progress = list(map(sub, totals, plan.levels))
            drafts = self._kept(replica, requests, found, progress, progress) or _none_for(sampled)
        self._steps = steps
        self.counters.quick += 1
        self._is_sample = bool(plan.heads)
        return drafts

    def _end_step(self, began: float, drafts: list[list[int]]) -> None:
        """Into the ledger."""
        ended = time.perf_counter()
        drafted, self._drafted = self._drafted, 0
        took = ended - began
        verified = self._verified if self._is_sample and self._returned_at > 0 else -1
        ledger = self._ledger
        ledger.append((len(drafts), began - self._returned_at, verified, self._took, took, drafted))
        self._verified = drafted
        self._took = took
        self._returned_at = ended
        if len(ledger) >= _LEDGER_STEPS:
            self._settle_ledger()

    def _settle_ledger(self) -> None:
        """Counts what the steps since have cost and brought."""
        counters, budget = self.counters, self._budget
        ledger, self._ledger = self._ledger, []
        for requests, span, verified, making, took, drafted in ledger:
            counters.steps += 1
            counters.requests += requests
            counters.drafted += drafted
            counters.propose_us += took * 1e6
            if span >= STEP_S_MAX:
                continue
            counters.step_us += span * 1e6
            if verified >= 0:
                # Drafts cost what their making takes, too.
                budget.observe(requests, verified, (span + making if verified > 0 else span) * 1e6)
        budget.learn()
        counters.step_error = budget.step_time.error

    def _propose(self, replica: Replica, sampled: list[list[int]], lengths: Any, token_ids: Any) -> list[list[int]]:
        self._met = False
        drafts = self._step(replica, sampled, lengths, token_ids)
        # A step that held the prefill of a request, which is new, is no sample of others.
        self._is_sample = not self._met and all(sampled)
        if self._has_lineups:
            req_ids = self._runner.input_batch.req_ids
            self._plan = plan_of(req_ids, self._requests, self._untracked, lengths, replica)
            if self._plan is not None:
                self._plan.prepare(self._tokens_max, self._bits)
        return drafts

    def _leave(self) -> None:
        """The requests are brought up to date before anybody reads them."""
        plan = self._plan
        self._plan = None
        if plan is not None:
            plan.settle()

    def _recover(self) -> None:
        """After an error in a step. What it left may raise again, so every request is registered again."""
        try:
            self._leave()
        except Exception as error:  # noqa: BLE001 - see propose
            self.faults.add("recover", error)
            self._requests.clear()

    def _step(self, replica: Replica, sampled: list[list[int]], lengths: Any, token_ids: Any) -> list[list[int]]:
        drafts = _none_for(sampled)
        replica.begin()
        if self._mailbox.down:
            self._take_down(replica)
        totals = lengths[: len(sampled)].tolist()
        bits = self._probability_bits(len(sampled))
        allowed = self._allowed()
        tokens_max = min(self._tokens_max, allowed) if self._budget.wants_drafts() else 0
        requests, req_ids, untracked = self._requests, self._runner.input_batch.req_ids, self._untracked
        words, owners, draft_words = replica.words, replica.owners, replica.draft_words
        made: list[Made] = []
        given: list[Made] = []
        asked: list[int] = []
        progress: list[int] = []
        asked_progress: list[int] = []
        accepted = 0
        # Records are written here, and not by calls: 32 requests have 100 us.
        for i, tokens in enumerate(sampled):
            if not tokens and not self._drafts_ahead:
                continue
            request = requests.get(req_ids[i])
            if request is untracked:
                continue
            if request is None or not request.group.is_alive:
                cleared = replica.cleared
                request = self._meet(req_ids[i], i, token_ids)
                if replica.cleared != cleared:
                    # It has other weights: the records of this step belong to dropped groups.
                    made.clear()
                    given.clear()
                    asked.clear()
                    progress.clear()
                    asked_progress.clear()
            group = request.group
            if not group.is_alive:
                continue
            sample, total, count = request.sample, totals[i], len(tokens)
            accepted += max(0, count - 1)
            progress.append(total - request.level)
            end = request.base + total
            start = end - count
            if sample.sent == start:
                if count > 0:
                    made.append((group.name, sample.index, start, tokens))
                sample.sent = end
            elif sample.sent < end:
                given.append(lacking(request, token_ids[i], total))
                sample.sent = end
            handle = group.handle
            if handle <= 0:
                continue
            if sample.have == start:
                words += (handle, sample.index, count)
                words += tokens
                owners.append(group)
                sample.have = end
            elif sample.have < end and not self._catch_up(replica, request, token_ids[i], end):
                continue
            room = request.limit - total
            if room > 0 and tokens_max > 0 and sample.have == end:
                draft_words += (handle, sample.index, min(room, tokens_max), 0, bits, WEIGHT_ONE)
                asked.append(i)
                asked_progress.append(progress[-1])
        self.counters.accepted += accepted
        if (made or given) and self._link is not None:
            self._mailbox.up.append(Batch(self._epoch, made, given))
        found = replica.cross(allowed)
        if found is not None:
            self._use(replica, drafts, asked, found, asked_progress, progress)
        self._steps += 1
        if self._steps % SWEEP_STEPS == 0:
            self._sweep(replica)
        return drafts

    def _use(
        self,
        replica: Replica,
        drafts: list[list[int]],
        asked: list[int],
        found: StepDrafts,
        asked_progress: list[int],
        progress: list[int],
    ) -> None:
        """The drafts of the requests `asked`."""
        kept = self._kept(replica, len(drafts), found, asked_progress, progress)
        if kept is not None:
            for i, draft in zip(asked, kept, strict=True):
                drafts[i] = draft

    def _kept(
        self, replica: Replica, requests: int, found: StepDrafts, progress: list[int], all_progress: list[int]
    ) -> list[list[int]] | None:
        """Of each draft, the tokens that the engine is given; None: none of any.

        `progress`: tokens less steps, of the requests with drafts and of all that are tracked.
        """
        starts, tokens = found.starts, found.tokens
        drafted = len(tokens)
        if drafted == 0:
            return None
        if self._settings.probability_min > 0:
            self._drafted = drafted
            return [tokens[a:b] for a, b in pairwise(starts)]
        probabilities = replica.probabilities(drafted)
        whole = None
        if self._is_ending(requests):
            slowest = min(all_progress)
            weights = weights_of([at - slowest for at in progress])
            for weight, (a, b) in zip(weights, pairwise(starts), strict=True):
                if weight < 1:
                    probabilities[a:b] = [weight * p for p in probabilities[a:b]]
            # Those of no group are as slow as any.
            whole = sum(weights_of([at - slowest for at in all_progress])) + requests - len(all_progress)
        least = self._budget.choose(requests, probabilities, whole)
        if least <= min(probabilities):
            self._drafted = drafted
            return [tokens[a:b] for a, b in pairwise(starts)]
        if least > 1:
            self.counters.withheld += drafted
            return None
        # Along a path it never rises: what is kept is its beginning.
        kept = [tokens[a : bisect_right(probabilities, -least, a, b, key=neg)] for a, b in pairwise(starts)]
        self._drafted = sum(map(len, kept))
        self.counters.withheld += drafted - self._drafted
        return kept

    def _is_ending(self, requests: int) -> bool:
        """Whether the batch only shrinks. Not with a sidecar: there, requests may wait that this engine cannot see."""
        if self._settings.draft_url:
            return False
        return self._steps - self._began_at > max(_ENDING_STEPS, _ENDING_REQUEST_STEPS // requests)

    def _allowed(self) -> int:
        """Draft tokens of this step, all requests together, that the sidecar allows."""
        if not self._may_draft:
            return 0
        budget = self._mailbox.budget
        if budget is None:
            return BUDGET_NONE
        if time.monotonic() > budget.until:
            self._mailbox.budget = None
            return BUDGET_NONE
        if budget.step_tokens == 0:
            self.counters.over_budget += 1
        return min(budget.step_tokens, BUDGET_NONE)

    def _probability_bits(self, requests: int) -> int:
        if self._settings.probability_min > 0:
            return self._bits
        least = self._budget.probability_min(requests)
        if least != self.counters.probability_min:
            self.counters.probability_min = least
            self._bits = float_word(least)
        return self._bits

    def _catch_up(self, replica: Replica, request: Request, line: Any, end: int) -> bool:
        """Tokens that were made elsewhere, or in steps that proposed nothing. False: more are left."""
        group, sample = request.group, request.sample
        if replica.allowance <= 0:
            return False
        begin = request.prompt_tokens + sample.have
        stop = min(request.prompt_tokens + end, begin + replica.allowance)
        tokens = line[begin:stop].tolist()
        if not tokens or min(tokens) < 0:
            return False
        replica.append(group, sample, tokens)
        replica.allowance -= len(tokens)
        return sample.have == end

    def _meet(self, request_id: str, i: int, token_ids: Any) -> Request:
        """A request's first step here, or its group was dropped. What cannot be understood is not tracked."""
        self._met = True
        request: Request | None = None
        try:
            request = self._met_request(request_id, i, token_ids)
        except Exception as error:  # noqa: BLE001 - one request's fields are no reason to fail the batch
            self.faults.add("request", error)
        self._requests[request_id] = request or self._untracked
        return self._requests[request_id]

    def _met_request(self, request_id: str, i: int, token_ids: Any) -> Request | None:
        runner, replica = self._runner, self._replica
        cached = runner.requests.get(request_id)
        params = getattr(cached, "sampling_params", None)
        extra = getattr(params, "extra_args", None) or {}
        name = group_name(extra.get("foretoken_group"))
        if name is None or replica is None or not int(extra.get("foretoken_draft", 1)):
            self.counters.untracked += 1
            return None
        sample_index = int(extra.get("foretoken_sample", 0))
        offset = int(extra.get("foretoken_offset", 0))
        given = int(runner.input_batch.num_prompt_tokens[i])
        if not 0 <= sample_index < abi.SEQUENCES_MAX or not 0 <= offset < given:
            self.faults.add("extra_args", f"sample {sample_index}, offset {offset} of {given} tokens")
            return None
        if not self._is_of_now(extra.get("foretoken_run"), extra.get("foretoken_epoch")):
            return None
        # A later turn of a session: the group has the first turn's prompt, the sample begins after the turns between.
        known = int(extra.get("foretoken_prompt", given - offset))
        if not 0 < known <= given - offset:
            self.faults.add("extra_args", f"prompt of {known} tokens, offset {offset} of {given} tokens")
            return None
        prompt = array("i", token_ids[i, :known].tolist())
        group = self._group(replica, name, prompt)
        if group is None:
            return None
        request = Request(group, group.sample(sample_index))
        request.prompt_tokens = given - offset
        request.base = offset - given
        # The draft's tokens and the one that is drawn after them stay within the chunk and the context.
        max_tokens = int(getattr(params, "max_tokens", None) or self._length_max)
        request.limit = min(self._length_max, given + max_tokens) - 1
        request.level = given - self._steps
        if offset == 0:
            self._began_at = self._steps
        return request

    def _group(self, replica: Replica, name: str, prompt: array[int]) -> Group | None:
        now = time.monotonic()
        group = replica.groups.get(name)
        if group is not None and group.prompt != prompt:
            if now < group.used_at + _CONFLICT_S:
                self.faults.add("conflict", f"group {name} runs with two prompts")
                return None
            replica.drop(group)
            self._mailbox.up.append(Ended(self._epoch, name))
            group = None
        if group is None:
            group = replica.create(name, prompt, now)
            self._mailbox.up.append(Began(self._epoch, name, prompt.tobytes()))
        group.used_at = now
        return group

    def _is_of_now(self, run: Any, epoch: Any) -> bool:
        """False: the request belongs to weights that were replaced. Another run counts its epochs from the start."""
        if not isinstance(epoch, int) or not 0 <= epoch < 2**32:
            return True
        name = run if isinstance(run, str) else ""
        if name != self._run:
            if self._run is not None or epoch != self._epoch:
                self._advance(epoch)
            self._run = name
        elif epoch > self._epoch:
            self._advance(epoch)
        return epoch == self._epoch

    def _advance(self, epoch: int) -> None:
        self._epoch = epoch
        self._plan = None
        self._requests.clear()
        # Before the core is called, which may trap.
        self._mailbox.advance(epoch)
        if self._replica is not None:
            self._replica.clear()

    def _watch_reload(self, runner: Any) -> None:
        """Weights that are reloaded begin another epoch, unless the requests carry it."""
        reload = getattr(runner, "reload_weights", None)
        if not callable(reload):
            return

        def reload_weights(*arguments: Any, **options: Any) -> Any:
            result = reload(*arguments, **options)
            try:
                if self._run is None:
                    self._advance(self._epoch + 1)
            except CoreTrapError as error:
                self._trapped(error)
            except Exception as error:  # noqa: BLE001 - the reload itself went well
                self.faults.add("reload", error)
            return result

        runner.reload_weights = reload_weights

    def _take_down(self, replica: Replica) -> None:
        down = self._mailbox.down
        while down and replica.allowance > 0:
            self._take_one(replica, down.popleft())

    def _take_one(self, replica: Replica, item: Down) -> None:
        if isinstance(item, Adopt):
            if self._run is None and item.epoch > self._epoch:
                self._advance(item.epoch)
            return
        group = replica.groups.get(item.group) if item.epoch == self._epoch else None
        if group is None:
            return
        if isinstance(item, Delta):
            if not 0 <= item.sample < abi.SEQUENCES_MAX:
                return
            sample = group.sample(item.sample)
            tokens = array("i")
            tokens.frombytes(item.tokens)
            if not replica.take(group, sample, item.offset, tokens):
                self._mailbox.up.append(Lacks(self._epoch, group.name, item.sample, sample.have))
        elif isinstance(item, Past):
            tokens = array("i")
            tokens.frombytes(item.tokens)
            if not replica.take_past(group, item.offset, tokens):
                self._mailbox.up.append(LacksPast(self._epoch, group.name))
        elif isinstance(item, Wants):
            sample = group.sample(item.sample)
            sample.sent = min(sample.sent, item.have)
        else:
            self._mailbox.up.append(Began(self._epoch, group.name, group.prompt.tobytes()))
            for sample in group.samples.values():
                sample.sent = 0

    def _sweep(self, replica: Replica) -> None:
        """Forgets requests that have ended here, and groups that none of them has used for their lifetime."""
        now = time.monotonic()
        running = self._runner.requests
        self._requests = {name: request for name, request in self._requests.items() if name in running}
        for request in self._requests.values():
            request.group.used_at = now
        for group in list(replica.groups.values()):
            if now > group.used_at + self._settings.ttl_s:
                replica.drop(group)
                self._mailbox.up.append(Ended(self._epoch, group.name))

    def _trapped(self, error: CoreTrapError) -> None:
        self.faults.add("core trap", error)
        self._traps += 1
        self._plan = None
        self._requests.clear()
        try:
            if self._replica is not None and self._traps < TRAPS_MAX:
                self._replica.clear(trapped=True)
                return
        except Exception as failure:  # noqa: BLE001 - see propose
            self.faults.add("core", failure)
        # No core any more: the engine goes on without drafts.
        self._replica = None
        self._is_on = False

    def telemetry(self) -> dict[str, Any]:
        """Fields of the Telemetry message; read by the link's thread."""
        seen = engine.state(self.faults)
        counters = self.counters
        return {
            "running": len(self._requests) if seen.running < 0 else seen.running,
            "waiting": seen.waiting,
            "kv_usage": seen.kv_usage,
            "is_lossless": self._is_on and self._is_lossless,
            "steps": counters.steps,
            "step_us": counters.step_us,
            "propose_us": counters.propose_us,
            "drafted": counters.drafted,
            "accepted": counters.accepted,
            "faults": self.faults.total,
            "step_error": counters.step_error,
            "repeats_seeds": self._repeats_seeds(),
        }

    def _repeats_seeds(self) -> bool:
        """Whether a seeded response has the same tokens each time."""
        is_exact = self._settings.exact > 0 and "exact" not in self.faults.counts
        return is_exact or not (self._is_on and self._may_draft)

    def stats(self) -> dict[str, Any]:
        """Counters as JSON can hold them; read by the link's thread, so figures may be a step apart."""
        replica = self._replica
        return {
            **self.counters.figures(),
            "is_on": self._is_on,
            "is_lossless": self._is_on and self._is_lossless,
            "epoch": self._epoch,
            "groups": 0 if replica is None else len(replica.groups),
            "tokens_taken": 0 if replica is None else replica.tokens_taken,
            "past_tokens": 0 if replica is None else replica.past_tokens,
            "traps": self._traps,
            "faults": dict(self.faults.counts),
        }


def _none_for(sampled: list[list[int]]) -> list[list[int]]:
    """A list for each request: vLLM keeps them."""
    return [[] for _ in sampled]


def _is_output_rank() -> bool:
    """vLLM takes drafts from the first tensor-parallel rank alone."""
    try:
        from vllm.distributed.parallel_state import get_tp_group
    except ImportError:
        return True
    try:
        return int(get_tp_group().rank_in_group) == 0
    except AssertionError:
        return True
