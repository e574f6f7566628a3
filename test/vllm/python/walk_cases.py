"""The kernel against the core: drafts of the same tables, under Triton's interpreter. Prints figures as JSON.

Groups of random siblings over small and large vocabularies; tables of every request, walked from every number of
unknown tokens that follow the tree, and from some that leave it.
"""

from __future__ import annotations

import json
import random
from array import array
from types import SimpleNamespace

import numpy as np
import torch

from foretoken_vllm import abi, speculator
from foretoken_vllm.core import SuffixCore, float_word
from foretoken_vllm.exact import accept
from foretoken_vllm.table import KINDS, ODDS, Tables
from foretoken_vllm.walk import _NO_CONFIDENCE, walk
from walk_twin import drafted, walk_along
from walk_twin import walk as expected_walk

SLOTS = 20
WIDTH = 512
DRAFTS = 8
PATH = 16
ONE = float_word(1.0)
# Groups that are walked beside a head, too: each takes the interpreter five times as long.
ALONG = 2


def main() -> None:
    random.seed(7)
    accepts()
    faulty()
    adapts()
    cases = deep = left = 0
    for group in range(8):
        vocabulary = random.choice([2, 5, 40, (1 << abi.TABLE_TOKEN_BITS) - 1])
        cases_of, deep_of, left_of = walked(vocabulary, beside=group < ALONG)
        cases, deep, left = cases + cases_of, deep + deep_of, left + left_of
    print(json.dumps({"cases": cases, "drafted": deep, "left": left}))


def faulty() -> None:
    """What fails in the speculator, on either thread, ends in drafts that the model can read, and nothing is raised."""
    # What vLLM puts in place for a CPU: memory that needs no pinning.
    import vllm.v1.worker.cpu.shm  # noqa: F401

    config = SimpleNamespace(
        additional_config={"foretoken": {}},
        speculative_config=SimpleNamespace(num_speculative_tokens=4),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        model_config=SimpleNamespace(max_model_len=64, get_vocab_size=lambda: 100),
    )
    states = SimpleNamespace(
        total_len=SimpleNamespace(gpu=torch.full((8,), 3, dtype=torch.int32)),
        all_token_ids=SimpleNamespace(gpu=torch.zeros((8, 64), dtype=torch.int32)),
        last_sampled_tokens=torch.arange(8, dtype=torch.int64).view(-1, 1),
    )
    made = speculator.ForetokenSpeculator(config, torch.device("cpu"), states)
    batch = SimpleNamespace(num_reqs=2, num_draft_tokens=0, num_tokens=2, idx_mapping=torch.tensor([5, 1]))
    wanted = [[5] * 4, [1] * 4]

    def proposed(of: object, **options: bool) -> list[list[int]]:
        return made.propose(of, *[None] * 9, **options).tolist()

    graphed = SimpleNamespace(cg_mode=SimpleNamespace(name="FULL"))
    for graph in (graphed, SimpleNamespace(cg_mode=SimpleNamespace(name="NONE")), graphed):
        speculator._dispatched(made, None, graph)
        if proposed(batch) != wanted:
            raise SystemExit("a request without a table does not draft its last token")
    proposed(batch, dummy_run=True)
    counters = made.drafter.counters
    if (counters.graph_steps, counters.outside_steps) != (2, 1):
        raise SystemExit(f"steps in graphs and outside: {counters}")
    made.drafter.take(["unknown"], np.array([[7]]), np.array([1]))
    made.drafter.take(["unknown"], None, None)  # type: ignore[arg-type]
    # vLLM writes -1 behind the tokens of a shorter step.
    made._drafts.fill_(-1)

    def broken(*_arguments: object) -> None:
        raise RuntimeError("the kernel does not compile")

    speculator.walk = broken
    for _ in range(2):
        if proposed(batch) != wanted:
            raise SystemExit("after a fault the drafts are no tokens")
    if set(made.faults.counts) != {"take", "recover", "walk"}:
        raise SystemExit(f"faults: {made.faults.counts}")


def accepts() -> None:
    """Exact acceptance against the obvious loop."""
    for _ in range(50):
        steps = random.randrange(1, 6)
        lengths = [random.randrange(1, steps + 2) for _ in range(random.randrange(1, 6))]
        starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        drawn = [random.randrange(3) for _ in range(starts[-1])]
        drafted = [random.randrange(-1, 3) for _ in range(starts[-1])]
        tensors = (torch.tensor(values, dtype=torch.int64) for values in (drawn, drafted, starts))
        sampled, counts = accept(*tensors, steps, torch)
        for i, count in enumerate(counts.tolist()):
            rows = range(starts[i], starts[i + 1])
            right = 0
            while right + 1 < len(rows) and drafted[rows[right] + 1] == drawn[rows[right]]:
                right += 1
            wanted = [drawn[row] for row in rows[: right + 1]]
            if (count, sampled[i, :count].tolist()) != (len(wanted), wanted):
                raise SystemExit(f"request {i}: {sampled[i, :count].tolist()}, not {wanted}")


def adapts() -> None:
    """vLLM's adaptive verification gives its budget to the requests whose tables say something."""
    from vllm.v1.worker.gpu.spec_decode.adaptive_verification import _assign_draft_token_budget as assign

    core = SuffixCore(learning=False)
    tables = Tables(core, 2)
    handle = core.create()
    core.prompt(handle, array("i", [1, 2, 3]))
    story = list(range(10, 40))
    core.step([word for i in range(4) for word in (handle, i, len(story), *story)], 4, array("i"), 0)
    core.table_step(np.array([(handle, 5, 1, 1, 4, PATH)], np.int32), np.array([[story[0]]], np.int32))
    views = [torch.from_numpy(words) for words in (tables.buffers, tables.selected, tables.followers)]
    tokens = torch.zeros((2, WIDTH), dtype=torch.int32)
    tokens[:, :4] = torch.tensor([1, 2, 3, story[0]])
    drafts, confidences = torch.zeros((2, DRAFTS), dtype=torch.int64), torch.zeros((2, DRAFTS), dtype=torch.float32)
    total, last = torch.full((2,), 4, dtype=torch.int32), torch.full((2,), story[0])
    slots = torch.tensor([0, 1])
    walk(tuple(views), torch.tensor(ODDS, dtype=torch.int32), slots, total, last, tokens, drafts, confidences)
    if drafts[1].tolist() != story[1 : DRAFTS + 1]:
        raise SystemExit(f"drafts {drafts.tolist()}")
    capacities = torch.full((2,), DRAFTS, dtype=torch.int32)
    assign(confidences, slots, capacities, DRAFTS, DRAFTS)
    if capacities.tolist() != [0, DRAFTS]:
        raise SystemExit(f"{capacities.tolist()} of {confidences.tolist()}")


def walked(vocabulary: int, *, beside: bool) -> tuple[int, int, int]:
    pieces = [[random.randrange(vocabulary) for _ in range(12)] for _ in range(4)]
    texts = [sum((random.choice(pieces) for _ in range(8)), []) for _ in range(6)]
    ends = [len(text) if i < 3 else random.randrange(5, 40) for i, text in enumerate(texts)]
    core = SuffixCore(learning=False)
    tables = Tables(core, SLOTS)
    handle = core.create()
    core.prompt(handle, array("i", [1, 2, 3]))
    words: list[int] = []
    for i, text in enumerate(texts):
        words += [handle, i, ends[i], *text[: ends[i]]]
    queries = array("i", [x for i in range(6) for x in (handle, i, PATH, abi.DRAFT_FLAG_TABLE, 0, ONE)])
    found = core.step(words, 6, queries, 6)
    parents_at = core._drafts_max * (1 + abi.TREE_TOKENS_MAX) + 2
    parents = core._output[parents_at : parents_at + len(found.tokens)].tolist()
    # Each table in several slots.
    records = [(handle, slot % 6, 0, slot, ends[slot % 6], PATH) for slot in range(SLOTS)]
    if core.table_step(np.array(records, np.int32), np.zeros((SLOTS, 0), np.int32)) != []:
        raise SystemExit("a record failed")
    rows = tables.buffers[tables.selected[0]].copy()

    all_tokens = torch.zeros((SLOTS, WIDTH), dtype=torch.int32)
    total = torch.zeros((SLOTS,), dtype=torch.int32)
    last = torch.zeros((SLOTS,), dtype=torch.int64)
    requests = []
    # With 0 to 4 unknown tokens, of the tree or not.
    for slot in range(SLOTS):
        i, unknown = slot % 6, slot // 6 % 5
        tokens = texts[i][: ends[i]]
        for _ in range(unknown):
            children = drafted(rows[slot], tables.followers, tokens, 1) if random.random() < 0.8 else []
            tokens = [*tokens, children[0] if children else random.randrange(vocabulary)]
        all_tokens[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        total[slot], last[slot] = len(tokens), tokens[-1]
        requests.append((i, tokens))
    order = random.sample(range(SLOTS), SLOTS)
    drafts = torch.full((SLOTS, DRAFTS), -7, dtype=torch.int64)
    confidences = torch.zeros((SLOTS, DRAFTS), dtype=torch.float32)
    views = [torch.from_numpy(words) for words in (tables.buffers, tables.selected, tables.followers)]
    odds = torch.tensor(ODDS, dtype=torch.int32)
    given = (tuple(views), odds, torch.tensor(order, dtype=torch.int64), total, last, all_tokens, drafts, confidences)
    walk(*given)
    deep = left = 0
    for line, likely, slot in zip(drafts.tolist(), confidences.tolist(), order, strict=True):
        i, tokens = requests[slot]
        expected = expected_walk(rows[slot], tables.followers, tokens, DRAFTS)
        wanted = [token for token, _ in expected]
        empty = DRAFTS - len(wanted)
        deep, left = deep + len(wanted), left + (len(wanted) == 0)
        if line != wanted + [tokens[-1]] * empty:
            raise SystemExit(f"slot {slot}: {line}, not {wanted}")
        if not np.allclose(likely, [odd for _, odd in expected] + [_NO_CONFIDENCE.value] * empty):
            raise SystemExit(f"slot {slot}: confidences {likely}, not {expected}")
        if len(tokens) == ends[i]:
            check_path(found, i, parents, wanted)
    if beside:
        along(rows, tables.followers, requests, order, given)
    # A slot that another request has: nothing of the old table is drafted.
    for slot in range(SLOTS):
        tables.clear(slot)
    walk(*given)
    if any(line != [requests[slot][1][-1]] * DRAFTS for line, slot in zip(drafts.tolist(), order, strict=True)):
        raise SystemExit("a cleared table drafts")
    return SLOTS, deep, left


def along(rows: object, followers: object, requests: list, order: list[int], given: tuple) -> None:
    """Beside a head: drafts, confidences and notes against the twin, for heads that are right, wrong, and asked for less."""
    drafts, confidences = given[-2:]
    likely = np.random.default_rng(random.randrange(1 << 30))
    rather = torch.from_numpy(likely.integers(0, 2, (DRAFTS, KINDS + 1), np.int32))
    notes = torch.full((SLOTS, 1 + 2 * DRAFTS), -9, dtype=torch.int32)
    kept = torch.full((SLOTS,), -9, dtype=torch.int32)
    for count, asked in ((DRAFTS, DRAFTS), (DRAFTS, 3), (5, 1), (5, 5), (0, 0)):
        heads = {}
        confidences.copy_(torch.from_numpy(likely.random(confidences.shape, np.float32)))
        drafts.fill_(-3)
        for line, slot in enumerate(order):
            # What the table would say, but for one place in four.
            said = [token for token, _ in expected_walk(rows[slot], followers, requests[slot][1], asked)]
            tokens = [token if random.random() < 0.75 else 1 for token in [*said, *[2] * DRAFTS][:asked]]
            drafts[line, :asked] = torch.tensor(tokens)
            heads[slot] = list(zip(tokens, confidences[line].tolist(), strict=False))
        walk(*given, asked, head=(rather, notes, kept), count=count)
        for line, slot in enumerate(order):
            tokens = requests[slot][1]
            wanted, noted, kept_of = walk_along(rows[slot], followers, tokens, count, heads[slot], rather.tolist())
            empty = count - len(wanted)
            found = drafts[line, :count].tolist()
            if found != [token for token, _ in wanted] + [tokens[-1]] * empty:
                raise SystemExit(f"slot {slot} beside a head: {found}, not {wanted}")
            if not np.allclose(confidences[line, : len(wanted)].tolist(), [odd for _, odd in wanted]):
                raise SystemExit(f"slot {slot}: confidences {confidences[line]}, not {wanted}")
            note = notes[slot].tolist()
            is_noted = (note[1 : 1 + count], note[1 + DRAFTS : 1 + DRAFTS + count]) == noted
            if note[0] != len(tokens) or not is_noted or int(kept[slot]) != kept_of:
                raise SystemExit(f"slot {slot}: {note}, {kept[slot]} kept, not {noted}, {kept_of}")


def check_path(found: object, i: int, parents: list[int], wanted: list[int]) -> None:
    """Nothing unknown: the draft is the core's likeliest path from the root, by its own tokens and parents."""
    starts, tokens = found.starts, found.tokens  # type: ignore[attr-defined]
    at, path = -1, []
    while True:
        nodes = range(starts[i], starts[i + 1])
        place = next((n for n in nodes if parents[n] == at), None)
        if place is None or len(path) == DRAFTS:
            break
        path.append(tokens[place])
        at = place - starts[i]
    # Behind the tree, what followed in the group.
    if path != wanted[: len(path)]:
        raise SystemExit(f"the core drafts {path}, the table {wanted}")


main()
