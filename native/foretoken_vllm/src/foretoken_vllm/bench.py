"""`python -m foretoken_vllm.bench`: what the proposer costs an engine step, and where.

Drives the proposer as vLLM would, without vLLM: groups of 8 that vary one story, of which two more siblings have
ended elsewhere; drafts are accepted as far as they are right.
Seed 42; the hash of what was drafted shows that two runs did the same.

Each is measured twice. Hot: one step straight after the other, as no engine runs. Cold: before each step other memory
is written, outside the timed part, so that the caches hold nothing of the step before, nor the interpreter itself: as
after a model's forward pass, or colder, for there the engine's own Python has run since.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import time
from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np

from .budget import DraftBudget
from .mailbox import Delta
from .proposer import ForetokenProposer

GROUP_SIZE = 8
ELSEWHERE = 2
VOCABULARY = 4096
PROMPT_TOKENS = 64
BATCHES = (1, 8, 32, 128)
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
    calls = call_costs()
    if given.json:
        print(json.dumps({"batches": rows, "calls": calls}))
        return 0
    names = list(rows[0])
    print(" | ".join(names))
    for row in rows:
        print(" | ".join(f"{row[name]:.2f}" if isinstance(row[name], float) else str(row[name]) for name in names))
    print(", ".join(f"{name} {value:.2f}" for name, value in calls.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
