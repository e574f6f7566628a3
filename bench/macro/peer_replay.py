"""Replays recorded groups with arctic-inference's suffix cache, deployed as its engine plugin does.

Reads one JSON object a line from stdin, {"prompt": [ids], "responses": [[ids], ...]}, and prints one
JSON object of sums. It measures and judges nothing: bench/macro/replay-peer.ts starts it and compares.
The rules are those of src/tools/replay: acceptance by token equality, and a step yields its accepted
tokens and one more, unless the response ends before.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator

import numpy as np
from arctic_inference.suffix_decoding import SuffixDecodingCache

PROGRESS_S = 5.0


class Sums:
    """What is counted; `cpu_s` is the CPU time inside the peer, its Python included."""

    def __init__(self) -> None:
        self.steps = 0
        self.tokens = 0
        self.drafted = 0
        self.accepted = 0
        self.cpu_s = 0.0


class Live:
    """One response in the making: `text` is prompt and recorded response, `at` the tokens that are out."""

    def __init__(
        self, cache: SuffixDecodingCache, name: str, prompt: list[int], response: list[int]
    ) -> None:
        self.cache = cache
        self.name = name
        self.text = np.array(prompt + response, dtype=np.int32)
        self.at = len(prompt)

    def done(self) -> bool:
        return self.at >= len(self.text)


def accepted_of(live: Live, tokens: list[int], parents: list[int]) -> int:
    """Length of the longest drafted path that the recorded response follows."""
    depth = [0] * len(tokens)
    longest = 0
    for i, token in enumerate(tokens):
        parent = parents[i]
        before = 0 if parent < 0 else depth[parent]
        if parent >= 0 and before == 0:
            continue
        at = live.at + before
        if at < len(live.text) and int(live.text[at]) == token:
            depth[i] = before + 1
            longest = max(longest, before + 1)
    return longest


def step(lives: list[Live], args: argparse.Namespace, sums: Sums) -> None:
    """One engine step of every live response.

    `--order serial`: a response's new tokens enter the cache before the next response drafts. It favours
    the peer by 0.3 to 1 %. `batched`: all drafts first, as its engine plugin does.
    """
    depth = args.depth
    fresh: list[tuple[Live, np.ndarray]] = []
    for live in lives:
        context = live.text[max(0, live.at - depth) : live.at]
        begun = time.thread_time()
        draft = live.cache.speculate(
            live.name,
            context,
            max_spec_tokens=args.budget,
            max_spec_factor=args.factor,
            max_spec_offset=args.offset,
            min_token_prob=args.min_prob,
            use_tree_spec=args.tree,
        )
        sums.cpu_s += time.thread_time() - begun
        accepted = accepted_of(live, draft.token_ids, draft.parents)
        to = min(len(live.text), live.at + accepted + 1)
        tokens = live.text[live.at : to]
        sums.steps += 1
        sums.drafted += len(draft.token_ids)
        sums.accepted += accepted
        sums.tokens += to - live.at
        live.at = to
        if args.order == "serial":
            extend([(live, tokens)], sums)
        else:
            fresh.append((live, tokens))
    extend(fresh, sums)


def extend(fresh: list[tuple[Live, np.ndarray]], sums: Sums) -> None:
    begun = time.thread_time()
    for live, tokens in fresh:
        live.cache.add_active_response(live.name, tokens)
        if live.done():
            live.cache.stop_request(live.name)
    sums.cpu_s += time.thread_time() - begun


def groups_of(lines: Iterator[str]) -> Iterator[tuple[list[int], list[list[int]]]]:
    for line in lines:
        group = json.loads(line)
        yield group["prompt"], group["responses"]


def start(lives: list[Live], prompt: list[int], sums: Sums) -> None:
    begun = time.thread_time()
    for live in lives:
        live.cache.start_request(live.name, np.array(prompt, dtype=np.int32))
    sums.cpu_s += time.thread_time() - begun


def replay_concurrent(args: argparse.Namespace, sums: Sums) -> None:
    """`--live` groups at a time, every response advances one step a round.

    `--scope engine`: one cache for all, as deployed. `group`: a cache for each group, dropped with it.
    """
    shared = new_cache(args)
    waiting = enumerate(groups_of(sys.stdin))
    live_groups: list[list[Live]] = []
    told = time.monotonic()
    while True:
        while len(live_groups) < args.live:
            following = next(waiting, None)
            if following is None:
                break
            number, (prompt, responses) = following
            cache = new_cache(args) if args.scope == "group" else shared
            lives = [Live(cache, f"{number}/{i}", prompt, r) for i, r in enumerate(responses) if r]
            start(lives, prompt, sums)
            if lives:
                live_groups.append(lives)
        if not live_groups:
            return
        step([live for lives in live_groups for live in lives], args, sums)
        left = [[live for live in lives if not live.done()] for lives in live_groups]
        live_groups = [lives for lives in left if lives]
        if time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            print(f"peer: {sums.tokens} tokens", file=sys.stderr, flush=True)


def replay_complete(args: argparse.Namespace, sums: Sums) -> None:
    """One response at a time, its siblings already in the cache; a cache for each group."""
    told = time.monotonic()
    for prompt, responses in groups_of(sys.stdin):
        cache = new_cache(args)
        for i, response in enumerate(responses):
            load(cache, f"old/{i}", response)
        for i, response in enumerate(responses):
            if not response:
                continue
            # The recorded target itself must not be in the cache that drafts it.
            cache.evict_cached_response(f"old/{i}")
            live = Live(cache, f"new/{i}", prompt, response)
            start([live], prompt, sums)
            while not live.done():
                step([live], args, sums)
                if time.monotonic() - told > PROGRESS_S:
                    told = time.monotonic()
                    print(f"peer: {sums.tokens} tokens", file=sys.stderr, flush=True)
            cache.evict_cached_response(live.name)
            load(cache, f"old/{i}", response)


def new_cache(args: argparse.Namespace) -> SuffixDecodingCache:
    return SuffixDecodingCache(max_tree_depth=args.depth, max_cached_requests=args.cached)


def load(cache: SuffixDecodingCache, name: str, response: list[int]) -> None:
    cache.start_request(name, np.array([], dtype=np.int32))
    cache.add_active_response(name, np.array(response, dtype=np.int32))
    cache.stop_request(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=["concurrent", "complete"], default="concurrent")
    parser.add_argument("--depth", type=int, required=True)
    parser.add_argument("--cached", type=int, required=True)
    parser.add_argument("--budget", type=int, required=True)
    parser.add_argument("--factor", type=float, required=True)
    parser.add_argument("--offset", type=float, required=True)
    parser.add_argument("--min-prob", type=float, required=True)
    parser.add_argument("--live", type=int, required=True)
    parser.add_argument("--scope", choices=["engine", "group"], default="engine")
    parser.add_argument("--order", choices=["serial", "batched"], default="serial")
    parser.add_argument("--tree", action="store_true")
    args = parser.parse_args()
    sums = Sums()
    if args.mode == "complete":
        replay_complete(args, sums)
    else:
        replay_concurrent(args, sums)
    print(json.dumps(vars(sums)))


if __name__ == "__main__":
    main()
