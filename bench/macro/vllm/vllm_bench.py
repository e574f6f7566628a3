"""For bench/macro/vllm.ts: fixes the lengths of responses inside a vLLM server, and logs its steps.

`--worker-extension-cls vllm_bench.Bench` adds the methods below to vLLM's worker, called over /collective_rpc. With
the executor `uni` the scheduler is in the worker's process, so its methods are wrapped here.

A response ends where the plan says: the end-of-text token takes the place of the token drawn there, and vLLM ends the
response as it always does. Before that the model's end of text is never drawn. All servers of the bench run this,
whatever the system, and nothing outside the engine knows a length.
"""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler


class _Response:
    """A request's place in the plan."""

    __slots__ = ("end", "group", "prompt_tokens", "sample")

    def __init__(self, group: int, sample: int, prompt_tokens: int, end: int | None) -> None:
        self.group = group
        self.sample = sample
        self.prompt_tokens = prompt_tokens
        # Tokens of prompt and response; None: the model, or max_tokens, ends it.
        self.end = end


class _State:
    """Of the process."""

    def __init__(self) -> None:
        self.eos = -1
        self.groups: dict[tuple[int, ...], int] = {}
        self.prompt_lengths: list[int] = []
        self.lengths: list[list[int]] | None = None
        self.responses: dict[str, _Response] = {}
        self.made = 0
        # Of the step's thread at its begin.
        self.cpu = 0.0
        self.begin: list[float] = []
        self.clear()

    def clear(self) -> None:
        self.steps: list[list[float]] = []
        self.prefills: list[list[float]] = []
        self.ends: list[list[float]] = []
        self.propose_ns = 0


_state = _State()


def _place(request: Any) -> _Response | None:
    """The response that a request belongs to: its prompt names the group, its sender the response of it."""
    prompt = request.prompt_token_ids
    extra = getattr(request.sampling_params, "extra_args", None) or {}
    sample = extra.get("bench_sample", extra.get("foretoken_sample"))
    if prompt is None or sample is None:
        return None
    for length in _state.prompt_lengths:
        group = _state.groups.get(tuple(prompt[:length])) if length <= len(prompt) else None
        if group is None:
            continue
        if _state.lengths is None:
            return _Response(group, int(sample), length, None)
        lengths = _state.lengths[group]
        made = lengths[int(sample) % len(lengths)]
        return _Response(group, int(sample), length, length + made if made > 0 else None)
    return None


def _wrap_scheduler() -> None:
    add_request = Scheduler.add_request
    schedule = Scheduler.schedule
    update_request = Scheduler._update_request_with_output
    update = Scheduler.update_from_output
    free = Scheduler._free_request

    def planned_add(self: Any, request: Any) -> Any:
        if _state.groups:
            place = _place(request)
            if place is not None:
                _state.responses[request.request_id] = place
        return add_request(self, request)

    def logged_schedule(self: Any, *arguments: Any, **options: Any) -> Any:
        begin = time.time()
        _state.cpu = time.thread_time()
        output = schedule(self, *arguments, **options)
        rows = output.total_num_scheduled_tokens
        if rows == 0:
            _state.begin = []
            return output
        counts = output.num_scheduled_tokens
        prefill = 0
        for new in output.scheduled_new_reqs:
            prefill += _log_prefill(self, begin, new.req_id, counts[new.req_id], resumed=0)
        for resumed in output.scheduled_cached_reqs.resumed_req_ids:
            prefill += _log_prefill(self, begin, resumed, counts[resumed], resumed=1)
        drafted = sum(map(len, output.scheduled_spec_decode_tokens.values()))
        running, waiting = self.get_request_counts()
        _state.made = 0
        _state.begin = [begin, running, waiting, len(counts), rows, prefill, drafted, self.get_kv_cache_usage()]
        return output

    def logged_update(self: Any, scheduled: Any, made: Any) -> Any:
        _end_as_planned(self, made)
        outputs = update(self, scheduled, made)
        if _state.begin:
            begin, *counted = _state.begin
            left = self.get_num_unfinished_requests()
            cpu = time.thread_time() - _state.cpu
            _state.steps.append([begin, time.time(), *counted, _state.made, left, cpu])
            _state.begin = []
        return outputs

    def counted_update(self: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        result = update_request(self, request, *arguments, **options)
        _state.made += len(result[0])
        return result

    def logged_free(self: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        place = _state.responses.pop(request.request_id, None)
        if place is not None:
            reason = 1 if request.status.name == "FINISHED_STOPPED" else 0
            made = request.num_tokens - place.prompt_tokens
            _state.ends.append([time.time(), place.group, place.sample, made, reason])
        return free(self, request, *arguments, **options)

    Scheduler.add_request = planned_add
    Scheduler.schedule = logged_schedule
    Scheduler.update_from_output = logged_update
    Scheduler._update_request_with_output = counted_update
    Scheduler._free_request = logged_free


def _end_as_planned(scheduler: Any, made: Any) -> None:
    """Puts the end of text where a response is to end, as if it had been drawn."""
    if _state.lengths is None or not made.sampled_token_ids:
        return
    for request_id, index in made.req_id_to_index.items():
        place = _state.responses.get(request_id)
        request = scheduler.requests.get(request_id)
        if place is None or place.end is None or request is None:
            continue
        tokens = made.sampled_token_ids[index]
        left = place.end - request.num_tokens
        if not 0 < left <= len(tokens):
            continue
        tokens[left - 1] = _state.eos
        logprobs = made.logprobs
        if logprobs is not None:
            counts = logprobs.cu_num_generated_tokens
            row = (index if counts is None else counts[index]) + left - 1
            logprobs.logprob_token_ids[row][0] = _state.eos


def _log_prefill(scheduler: Any, now: float, request_id: str, rows: int, resumed: int) -> int:
    request = scheduler.requests[request_id]
    place = _state.responses.get(request_id)
    if place is not None:
        # `num_computed_tokens` holds this step's rows already.
        found = request.num_computed_tokens - rows
        made = request.num_tokens - place.prompt_tokens
        _state.prefills.append([now, place.group, place.sample, place.prompt_tokens, made, found, rows, resumed])
    return rows


_wrap_scheduler()


class Bench:
    """Mixed into vLLM's worker class, whose `model_runner` it wraps."""

    model_runner: Any
    _is_wrapped = False

    def bench_plan(self, eos: int, prompts: list[list[int]], lengths: list[list[int]] | None) -> bool:
        """From now on the responses to each prompt are as long as said (0: max_tokens ends it); None: as they come."""
        if not self._is_wrapped:
            self._is_wrapped = True
            self._mask_end()
            self._clock_proposer()
        _state.eos = eos
        _state.groups = {tuple(prompt): group for group, prompt in enumerate(prompts)}
        _state.prompt_lengths = sorted({len(prompt) for prompt in prompts}, reverse=True)
        _state.lengths = lengths
        _state.clear()
        return True

    def bench_read(self) -> dict[str, Any]:
        """What was logged since the last plan or reading."""
        log = {
            "steps": _state.steps,
            "prefills": _state.prefills,
            "ends": _state.ends,
            "propose_us": _state.propose_ns / 1000,
        }
        _state.clear()
        return log

    def _mask_end(self) -> None:
        model = self.model_runner.model
        compute_logits = model.compute_logits

        def masked(*arguments: Any, **options: Any) -> Any:
            logits = compute_logits(*arguments, **options)
            if _state.lengths is not None and logits is not None:
                logits[:, _state.eos] = float("-inf")
            return logits

        model.compute_logits = masked

    def _clock_proposer(self) -> None:
        runner = self.model_runner
        propose = runner.propose_draft_token_ids

        def clocked(*arguments: Any, **options: Any) -> Any:
            begin = time.thread_time_ns()
            try:
                return propose(*arguments, **options)
            finally:
                _state.propose_ns += time.thread_time_ns() - begin

        runner.propose_draft_token_ids = clocked
