"""`python -m foretoken_vllm.bench`: what the proposer costs an engine step, and where.

Drives the proposer as vLLM would, without vLLM: groups of 8 that vary one story, of which two more siblings have
ended elsewhere; drafts are accepted as far as they are right.
Seed 42; the hash of what was drafted shows that two runs did the same.

The first runner's `propose` is measured twice. Hot: one step straight after the other, as no engine runs. Cold: before
each step other memory is written, outside the timed part, so that the caches hold nothing of the step before, nor the
interpreter itself: as after a model's forward pass, or colder, for there the engine's own Python has run since.

The second runner's `take` (tables of a device, 8,000 tokens a request): its time, what of it is the core's, outside of
Python's lock, and how long a thread that always wants the lock waits for it in a step.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import threading
import time
from array import array
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from .budget import DraftBudget
from .mailbox import Delta
from .proposer import ForetokenProposer
from .table_drafter import TableDrafter

GROUP_SIZE = 8
ELSEWHERE = 2
VOCABULARY = 4096
PROMPT_TOKENS = 64
BATCHES = (1, 8, 32, 128)
TABLE_BATCHES = (1, 8, 32, 128, 256)
TABLE_TOKENS = 8000
AT_ONCE_US = 10.0
# num_speculative_tokens on a GPU.
TABLE_DRAFTS = 7
SEED = 42
# So that about as much is drafted and accepted as of real responses (docs/DRAFTING.md: 4.1 and 1.5 a step).
CHANGED = 0.25
# More than the second-level caches hold, and far more than a core's share of the third.
COLD_BYTES = 64 * 2**20


def _variant(story: np.ndarray[Any, Any], random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Some of its tokens differ, and it begins somewhere else."""
    text = story.copy()
    changed = random.random(len(story)) < CHANGED
    text[changed] = random.integers(VOCABULARY, size=int(changed.sum()))
    return np.roll(text, int(random.integers(0, 48)))


class _Runner:
    """The runner's attributes that the proposer reads, and rows whose next tokens are known."""

    def __init__(self, requests: int, steps: int, *, grouped: bool) -> None:
        random = np.random.default_rng(SEED)
        length = PROMPT_TOKENS + 8 * steps + 64
        self.requests: dict[str, Any] = {}
        self.texts: list[np.ndarray[Any, Any]] = []
        self.ended: list[tuple[str, int, bytes]] = []
        names: list[str] = []
        for i in range(requests):
            group, sample = divmod(i, GROUP_SIZE)
            if sample == 0:
                story = random.integers(VOCABULARY, size=length)
                prompt = random.integers(VOCABULARY, size=PROMPT_TOKENS)
                for other in range(ELSEWHERE):
                    text = _variant(story, random).astype(np.int32)
                    self.ended.append((f"g{group}", GROUP_SIZE + other, text.tobytes()))
            self.texts.append(np.concatenate([prompt, _variant(story, random)]))
            name = f"r{i}"
            names.append(name)
            extra = {"foretoken_group": f"g{group}", "foretoken_sample": sample, "foretoken_offset": 0}
            params = SimpleNamespace(extra_args=extra if grouped else None, max_tokens=1 << 20)
            self.requests[name] = SimpleNamespace(sampling_params=params)
        self.input_batch = SimpleNamespace(req_ids=names, num_prompt_tokens=np.full(requests, PROMPT_TOKENS, np.int32))
        self.length_max = PROMPT_TOKENS + length
        self.token_ids = np.zeros((requests, self.length_max), np.int32)
        self.lengths = np.full(requests, PROMPT_TOKENS, np.int32)
        for i, text in enumerate(self.texts):
            self.token_ids[i, :PROMPT_TOKENS] = text[:PROMPT_TOKENS]

    def advance(self, drafts: list[list[int]]) -> list[list[int]]:
        """The engine's step: drafts are accepted as far as they are right, one token more is drawn."""
        sampled: list[list[int]] = []
        for i, draft in enumerate(drafts):
            at = int(self.lengths[i])
            text = self.texts[i]
            count = 0
            while count < len(draft) and draft[count] == text[at + count]:
                count += 1
            tokens = text[at : at + count + 1].tolist()
            self.token_ids[i, at : at + len(tokens)] = tokens
            self.lengths[i] = at + len(tokens)
            sampled.append(tokens)
        return sampled


class _FixedBudget(DraftBudget):
    """Every run drafts alike, whatever its steps took, and nothing is withheld; the work of judging is done."""

    def wants_drafts(self) -> bool:
        super().wants_drafts()
        return True

    def probability_min(self, requests: int) -> float:
        super().probability_min(requests)
        return 0.1

    def choose(self, requests: int, probabilities: list[float], whole: float | None = None) -> float:
        super().choose(requests, probabilities, whole)
        return 0.0


def _config(length_max: int, tokens: int) -> Any:
    return SimpleNamespace(
        additional_config={"foretoken": {}},
        speculative_config=SimpleNamespace(num_speculative_tokens=tokens),
        model_config=SimpleNamespace(max_model_len=length_max, get_vocab_size=lambda: VOCABULARY),
    )


def measure(requests: int, steps: int, tokens: int, *, cold: bool, grouped: bool = True) -> dict[str, float | str]:
    """Microseconds a step: propose, in it the call into the core (with the core's own work), and packing."""
    other = np.zeros(COLD_BYTES if cold else 0, np.uint8)
    runner = _Runner(requests, steps, grouped=grouped)
    proposer = ForetokenProposer(_config(runner.length_max, tokens))
    proposer.bind_runner(runner)
    proposer._budget = _FixedBudget()
    replica = proposer._replica
    if replica is None:
        raise RuntimeError(f"no core: {proposer.faults.counts}")
    core = replica._core
    inner = core._step
    in_call = 0.0

    def timed(appends: int, drafts: int, budget: int) -> int:
        nonlocal in_call
        began = time.perf_counter()
        result = inner(appends, drafts, budget)
        in_call += time.perf_counter() - began
        return result

    core._step = timed
    drafts: list[list[int]] = [[] for _ in range(requests)]
    whole: list[float] = []
    cpu: list[float] = []
    calls: list[float] = []
    digest = hashlib.sha256()
    drafted = accepted = 0
    for step in range(steps):
        if step == 8:
            down = (Delta(0, name, sample, 0, tokens) for name, sample, tokens in runner.ended)
            proposer._mailbox.down.extend(down)
        sampled = runner.advance(drafts)
        in_call = 0.0
        other += 1
        cpu_began, began = time.thread_time_ns(), time.perf_counter()
        drafts = proposer.propose(sampled, runner.lengths, runner.token_ids)
        us = (time.perf_counter() - began) * 1e6
        cpu_us = (time.thread_time_ns() - cpu_began) / 1e3
        for draft in drafts:
            digest.update(array("i", draft).tobytes())
        # The first steps register the groups and take in what was made elsewhere.
        if step < steps // 5:
            continue
        whole.append(us)
        cpu.append(cpu_us)
        calls.append(in_call * 1e6)
        drafted += sum(map(len, drafts))
        accepted += sum(len(tokens) - 1 for tokens in sampled)
    proposer.close()
    return {
        "caches": "cold" if cold else "hot",
        "requests": requests if grouped else f"{requests} of no group",
        "propose_us": statistics.median(whole),
        "cpu_us": statistics.median(cpu),
        "cpu_us_mean": statistics.fmean(cpu),
        "propose_us_p5": statistics.quantiles(whole, n=20)[0],
        "propose_us_mean": statistics.fmean(whole),
        "propose_us_p95": statistics.quantiles(whole, n=20)[18],
        "core_us": statistics.median(calls),
        "core_us_p5": statistics.quantiles(calls, n=20)[0],
        "python_us": statistics.median(whole) - statistics.median(calls),
        "drafted": drafted / len(whole) / requests,
        "accepted": accepted / len(whole) / requests,
        "hash": digest.hexdigest()[:12],
    }


class _Waiter(threading.Thread):
    """Takes Python's lock again and again; how long it waited for it, in all, where it did not get it at once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.us = 0.0
        self.is_on = True

    def run(self) -> None:
        while self.is_on:
            began = time.perf_counter()
            # Gives the lock away, and asks for it back.
            time.sleep(0)
            took = (time.perf_counter() - began) * 1e6
            if took > AT_ONCE_US:
                self.us += took


class _Tables:
    """A table drafter whose requests have 8,000 tokens each, in groups, and get one to three in a step."""

    def __init__(self, requests: int, steps: int, drafts: int) -> None:
        self._random = np.random.default_rng(SEED)
        self._width = drafts + 1
        self.waiter = _Waiter()
        context = PROMPT_TOKENS + TABLE_TOKENS + 4 * steps + 1000
        self.drafter = TableDrafter(
            SimpleNamespace(
                additional_config={},
                speculative_config=SimpleNamespace(num_speculative_tokens=drafts),
                scheduler_config=SimpleNamespace(max_num_seqs=requests),
                model_config=SimpleNamespace(max_model_len=context, get_vocab_size=lambda: VOCABULARY),
            )
        )
        self._ids = [f"r{i}" for i in range(requests)]
        self._texts: list[np.ndarray[Any, Any]] = []
        self._ends = np.full(requests, PROMPT_TOKENS + TABLE_TOKENS)
        story = prompt = np.zeros(0, np.int64)
        for i, name in enumerate(self._ids):
            group, sample = divmod(i, GROUP_SIZE)
            if sample == 0:
                story = self._random.integers(VOCABULARY, size=context)
                prompt = self._random.integers(VOCABULARY, size=PROMPT_TOKENS)
            text = np.concatenate([prompt, _variant(story, self._random)])
            self._texts.append(text)
            extra = {"foretoken_group": f"g{group}", "foretoken_sample": sample, "foretoken_offset": TABLE_TOKENS}
            params = SimpleNamespace(extra_args=extra, max_tokens=context, stop_token_ids=[VOCABULARY])
            given = text[: self._ends[i]].tolist()
            data = SimpleNamespace(prefill_token_ids=given, prompt_len=len(given), sampling_params=params)
            self.drafter.news.append(partial(self.drafter.mirror.add, name, data, i))

    def step(self, most: int) -> tuple[float, float, float]:
        """Microseconds of a step of one to `most` tokens a request: wall, processor, waits of the waiter."""
        counts = self._random.integers(1, most + 1, size=len(self._ids), dtype=np.int32)
        ends = zip(self._texts, self._ends.tolist(), strict=True)
        rows = np.stack([text[end : end + self._width] for text, end in ends])
        waited, began, cpu = self.waiter.us, time.perf_counter(), time.thread_time_ns()
        self.drafter.take(self._ids, rows, counts)
        wall_us, cpu_us = (time.perf_counter() - began) * 1e6, (time.thread_time_ns() - cpu) / 1e3
        self._ends += counts
        return wall_us, cpu_us, self.waiter.us - waited


def measure_tables(requests: int, steps: int, drafts: int) -> dict[str, Any]:
    """Medians of a step's `take`, in microseconds."""
    tables = _Tables(requests, steps, drafts)
    counters = tables.drafter.counters
    # Until all that was made before is in the core.
    for _ in range(900):
        tables.step(1)
        if counters.quick >= 3:
            break
    replica = tables.drafter._replica
    if replica is None or counters.quick < 3 or tables.drafter.faults.total > 0:
        raise RuntimeError(f"no steady step: {tables.drafter.faults.counts}")
    core = replica._core
    inner, calls = core._table_step, []

    def timed(*arguments: int) -> int:
        began = time.perf_counter()
        result = inner(*arguments)
        calls.append((time.perf_counter() - began) * 1e6)
        return result

    core._table_step = timed
    whole, cpu, _ = zip(*(tables.step(3) for _ in range(steps)), strict=True)
    call = statistics.median(calls)
    tables.waiter.start()
    _, _, waited = zip(*(tables.step(3) for _ in range(steps)), strict=True)
    tables.waiter.is_on = False
    return {
        "requests": requests,
        "take_us": statistics.median(whole),
        "take_us_p95": statistics.quantiles(whole, n=20)[18],
        "cpu_us": statistics.median(cpu),
        "core_us": call,
        "python_us": statistics.median(whole) - call,
        "waited_us": statistics.median(waited),
    }


def call_costs(rounds: int = 20_000) -> dict[str, float]:
    """Microseconds of one empty call into the core, raw and by wasmtime's public API, and of writing 4 KiB."""
    from .core import SuffixCore

    core = SuffixCore()
    step: Any = core._exports["step"]
    words = array("i", range(1024))

    def mean(act: Any, count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            act()
        return (time.perf_counter() - began) / count * 1e6

    return {
        "call_us": mean(lambda: core._step(0, 0, 1), rounds),
        "public_call_us": mean(lambda: step(core._store, 0, 0, 1), rounds // 10),
        "write_4k_us": mean(lambda: core._write(words), rounds),
    }


def main(arguments: list[str]) -> int:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m foretoken_vllm.bench", description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=8, help="num_speculative_tokens")
    parser.add_argument("--cold", action="store_true", help="with cold caches alone")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    rows = [
        measure(requests, given.steps, given.tokens, cold=cold, grouped=grouped)
        for cold in (False, True)
        if cold or not given.cold
        for requests, grouped in (*((requests, True) for requests in BATCHES), (BATCHES[-2], False))
    ]
    tables = [measure_tables(requests, given.steps, TABLE_DRAFTS) for requests in TABLE_BATCHES]
    calls = call_costs()
    if given.json:
        print(json.dumps({"batches": rows, "tables": tables, "calls": calls}))
        return 0
    for title, table in (("propose, first runner", rows), ("take, second runner", tables)):
        names = list(table[0])
        print(f"{title}\n{' | '.join(names)}")
        for row in table:
            print(" | ".join(f"{row[name]:.2f}" if isinstance(row[name], float) else str(row[name]) for name in names))
    print(", ".join(f"{name} {value:.2f}" for name, value in calls.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
