"""Times arctic-inference's suffix cache on the texts of bench/micro/core.ts, as its engine plugin uses it.

Reads one JSON object from stdin, {"siblings": [[ids], ...], "live": [[[ids], ...], ...], "step": tokens}, and prints
one: append_ns (a token), bytes (a stored token), path_us, tree_us (a call), live_ns (append and path of all requests,
step after step, a token). It judges nothing: core.ts starts it and compares.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np
from arctic_inference.suffix_decoding import SuffixDecodingCache

# As vLLM's `suffix` method has it.
DEPTH = 24
CACHED_REQUESTS = 10_000
TOKENS_MAX = 16
MIN_PROBABILITY = 0.1
PROMPT = np.array([1, 2, 3], dtype=np.int32)
CALLS = 2000


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def new_cache(names: list[str]) -> SuffixDecodingCache:
    cache = SuffixDecodingCache(max_tree_depth=DEPTH, max_cached_requests=CACHED_REQUESTS)
    for name in names:
        cache.start_request(name, PROMPT)
    return cache


def draft(cache: SuffixDecodingCache, name: str, text: np.ndarray[Any, Any], end: int, tree: bool) -> None:
    cache.speculate(
        name,
        text[max(0, end - DEPTH) : end],
        max_spec_tokens=TOKENS_MAX,
        max_spec_factor=1,
        max_spec_offset=0,
        min_token_prob=MIN_PROBABILITY,
        use_tree_spec=tree,
    )


def fill(cache: SuffixDecodingCache, texts: dict[str, np.ndarray[Any, Any]], step: int) -> float:
    """All texts in turn, `step` tokens at a time; CPU seconds."""
    length = len(next(iter(texts.values())))
    began = time.thread_time()
    for at in range(0, length, step):
        for name, text in texts.items():
            cache.add_active_response(name, text[at : at + step])
    return time.thread_time() - began


def live(texts: dict[str, np.ndarray[Any, Any]], step: int) -> float:
    """Each step every request gains `step` tokens and drafts a path; CPU seconds."""
    cache = new_cache(list(texts))
    length = len(next(iter(texts.values())))
    began = time.thread_time()
    for at in range(0, length, step):
        for name, text in texts.items():
            cache.add_active_response(name, text[at : at + step])
        for name, text in texts.items():
            draft(cache, name, text, at + step, False)
    return time.thread_time() - began


def calls(cache: SuffixDecodingCache, texts: dict[str, np.ndarray[Any, Any]], tree: bool) -> float:
    """Microseconds of one draft."""
    names = list(texts)
    began = time.thread_time()
    for i in range(CALLS):
        name = names[i % len(names)]
        draft(cache, name, texts[name], len(texts[name]), tree)
    return (time.thread_time() - began) * 1e6 / CALLS


def main() -> None:
    given = json.load(sys.stdin)
    step = int(given["step"])
    siblings = {f"s{i}": np.array(text, dtype=np.int32) for i, text in enumerate(given["siblings"])}
    stored = sum(map(len, siblings.values()))
    cache = new_cache(list(siblings))
    before = resident_bytes()
    append_s = fill(cache, siblings, step)
    taken = resident_bytes() - before
    path_us, tree_us = calls(cache, siblings, False), calls(cache, siblings, True)
    requests = {
        f"g{g}/{i}": np.array(text, dtype=np.int32)
        for g, group in enumerate(given["live"])
        for i, text in enumerate(group)
    }
    live_s = live(requests, step)
    found = {
        "append_ns": append_s * 1e9 / stored,
        "bytes": taken / stored,
        "path_us": path_us,
        "tree_us": tree_us,
        "live_ns": live_s * 1e9 / sum(map(len, requests.values())),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
