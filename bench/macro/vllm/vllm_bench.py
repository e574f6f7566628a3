"""For bench/macro/vllm.ts: fixes what responses say inside a vLLM server, and logs its steps.

`--worker-extension-cls vllm_bench.Bench` adds the methods below to vLLM's worker, called over /collective_rpc. With
the executor `uni` the scheduler is in the worker's process, so its methods are wrapped here.

The plan holds texts that plain vLLM drew before. Just before a server draws a token, all logits but that of the planned
token become -inf, so that this is what it draws, and a draft token is accepted if it equals it. The planned text was
drawn from the model's distribution, so drafts are accepted as often as if each server drew for itself; but all
systems generate the same texts. All servers of the bench run this, whatever the system, and nothing outside the engines
knows a text or a length.
"""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler


class _Response:
    """A request's place in the plan."""

    __slots__ = ("group", "prompt_tokens", "sample", "text")

    def __init__(self, group: int, sample: int, prompt_tokens: int, text: list[int] | None) -> None:
        self.group = group
        self.sample = sample
        self.prompt_tokens = prompt_tokens
        # None: what the model draws.
        self.text = text


class _State:
    """Of the process."""

    def __init__(self) -> None:
        self.eos = -1
        self.groups: dict[tuple[int, ...], int] = {}
        self.prompt_lengths: list[int] = []
        self.texts: list[list[list[int]]] | None = None
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
        if _state.texts is None:
            return _Response(group, int(sample), length, None)
        texts = _state.texts[group]
        # A later turn has another number than its session's first one; what was said before names the text.
        said = prompt[length:]
        numbered = texts[int(sample) % len(texts)]
        text = numbered if numbered[: len(said)] == said else next((t for t in texts if t[: len(said)] == said), numbered)
        return _Response(group, int(sample), length, text)
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


def _log_prefill(scheduler: Any, now: float, request_id: str, rows: int, resumed: int) -> int:
    request = scheduler.requests[request_id]
    place = _state.responses.get(request_id)
    if place is not None:
        # `num_computed_tokens` holds this step's rows already.
        found = request.num_computed_tokens - rows
        made = request.num_tokens - place.prompt_tokens
        _state.prefills.append([now, place.group, place.sample, place.prompt_tokens, made, found, rows, resumed])
    return rows


def _keep_planned(logits: Any, batch: Any, drafts: list[int] | None) -> None:
    """In each row, which draws the token behind the last one or behind a draft token, of the planned token alone."""
    rows: list[int] = []
    tokens: list[int] = []
    row = 0
    for index, request_id in enumerate(batch.req_ids):
        count = 1 if drafts is None else 1 + drafts[index]
        place = _state.responses.get(request_id)
        if place is not None and place.text is not None:
            made = int(batch.num_tokens_no_spec[index]) - place.prompt_tokens
            for ahead in range(count):
                rows.append(row + ahead)
                # Behind the end nothing is read.
                tokens.append(place.text[made + ahead] if made + ahead < len(place.text) else _state.eos)
        row += count
    logits[rows] = float("-inf")
    logits[rows, tokens] = 0.0


_wrap_scheduler()


class Bench:
    """Mixed into vLLM's worker class, whose `model_runner` it wraps."""

    model_runner: Any
    _is_wrapped = False

    def bench_plan(self, eos: int, prompts: list[list[int]], texts: list[list[list[int]]] | None) -> bool:
        """From now on the responses to each prompt are these; None: what the model draws."""
        if not self._is_wrapped:
            self._is_wrapped = True
            self._draw_as_planned()
            self._clock_proposer()
        _state.eos = eos
        _state.groups = {tuple(prompt): group for group, prompt in enumerate(prompts)}
        _state.prompt_lengths = sorted({len(prompt) for prompt in prompts}, reverse=True)
        _state.texts = texts
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

    def _draw_as_planned(self) -> None:
        runner = self.model_runner
        sample = runner._sample

        def planned(logits: Any, spec_decode_metadata: Any) -> Any:
            if _state.texts is not None and logits is not None:
                drafts = None if spec_decode_metadata is None else spec_decode_metadata.num_draft_tokens
                _keep_planned(logits, runner.input_batch, drafts)
            return sample(logits, spec_decode_metadata)

        runner._sample = planned

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
