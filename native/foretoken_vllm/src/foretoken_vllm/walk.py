"""The device's half of a draft: walks each request's table with the tokens just sampled, one Triton kernel a step."""

from typing import Any

from vllm.triton_utils import tl, triton

from . import abi
from .table import CHECK_SHIFT, FACTOR, ODDS_SHIFT

# What vLLM's adaptive verification gets for a place that has no draft.
_NO_CONFIDENCE = 0.01
CONSTANTS = {
    "nodes": abi.TABLE_NODES,
    "lane_count": triton.next_power_of_2(abi.TABLE_NODES),
    "token_bits": abi.TABLE_TOKEN_BITS,
    "parent_mask": (1 << abi.TABLE_PARENT_BITS) - 1,
    "odds_shift": ODDS_SHIFT,
    "head_words": abi.TABLE_HEAD_WORDS,
    "row_words": abi.TABLE_ROW_WORDS,
    "words_bits": abi.FOLLOWERS_BITS,
    "check_shift": CHECK_SHIFT,
    "factor": FACTOR,
    "no_confidence": _NO_CONFIDENCE,
}


@triton.jit  # type: ignore[untyped-decorator]
def _mixed(mixture, token, factor: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """The one of assembly/followers.ts."""
    product = ((mixture ^ token) * factor) & 0x7FFFFFFF
    return product ^ (product >> 15)


@triton.jit  # type: ignore[untyped-decorator]
def _likelier(  # type: ignore[no-untyped-def]  # noqa: ANN202
    words,  # noqa: ANN001
    odds,  # noqa: ANN001
    key,  # noqa: ANN001
    first,  # noqa: ANN001
    second,  # noqa: ANN001
    third,  # noqa: ANN001
    asks,  # noqa: ANN001
    kind,  # noqa: ANN001 - of the first of the key's odds
    best,  # noqa: ANN001
    found,  # noqa: ANN001
    words_bits: tl.constexpr,
    token_bits: tl.constexpr,
    check_shift: tl.constexpr,
    factor: tl.constexpr,
):
    """Odds and token of the likeliest follower, of `found` and those of the key."""
    mixture = key
    for back in tl.static_range(3):
        mixture = _mixed(mixture, first if back == 0 else (second if back == 1 else third), factor)
        word = tl.load(words + (mixture >> (31 - words_bits)), mask=asks, other=0)
        is_known = (word != 0) & ((word >> check_shift) == (mixture & 255))
        odd = tl.load(odds + kind + (2 - back) * 4 + ((word >> token_bits) & 3), mask=is_known, other=0)
        found = tl.where(odd > best, word & ((1 << token_bits) - 1), found)
        best = tl.maximum(best, odd)
    return best, found


# Without types: Triton looks a parameter's up, and takes none but its own.
def _walk(  # type: ignore[no-untyped-def]  # noqa: ANN202
    buffers,  # noqa: ANN001 - *int32 [2, slots, row_words] (assembly/tables.ts)
    selected,  # noqa: ANN001 - *int32 [1]
    followers,  # noqa: ANN001 - *int32 [1 << words_bits] (assembly/followers.ts)
    odds,  # noqa: ANN001 - *int32
    slots,  # noqa: ANN001 - *int [requests]: of the batch's requests
    total_len,  # noqa: ANN001 - *int32 [slots]: tokens, those just sampled included
    last_sampled,  # noqa: ANN001 - *int64 [slots]
    all_tokens,  # noqa: ANN001 - *int32 [slots, tokens_stride]
    drafts,  # noqa: ANN001 - *int64 [requests, drafts_stride]
    confidences,  # noqa: ANN001 - *float32 [requests, drafts_stride]: of a draft token, where those before it are right
    tokens_stride,  # noqa: ANN001
    buffer_words,  # noqa: ANN001
    drafts_stride,  # noqa: ANN001
    count,  # noqa: ANN001
    nodes: tl.constexpr,
    lane_count: tl.constexpr,
    token_bits: tl.constexpr,
    parent_mask: tl.constexpr,
    odds_shift: tl.constexpr,
    head_words: tl.constexpr,
    row_words: tl.constexpr,
    words_bits: tl.constexpr,
    check_shift: tl.constexpr,
    factor: tl.constexpr,
    no_confidence: tl.constexpr,
):
    request = tl.program_id(0)
    slot = tl.load(slots + request).to(tl.int64)
    row = buffers + tl.load(selected) * buffer_words + slot * row_words
    known = tl.load(row)
    key = tl.load(row + 1).to(tl.int64)
    own_key = tl.load(row + 2).to(tl.int64)
    total = tl.load(total_len + slot)
    lanes = tl.arange(0, lane_count)
    words = tl.load(row + head_words + lanes, mask=lanes < nodes, other=-1)
    # A place without a node has a parent that no walk reaches.
    parents = tl.where(words < 0, nodes + 1, ((words >> token_bits) & parent_mask) - 1)
    tokens = words & ((1 << token_bits) - 1)
    # `nodes`: the walk has left the tree.
    at = tl.where((known > 0) & (known <= total) & (total <= known + nodes), -1, nodes)
    # A stale table, or another request's, says nothing.
    known = tl.where(at < 0, known, 0)
    for place in range(tl.where(at < 0, known, total), total):
        token = tl.load(all_tokens + slot * tokens_stride + place)
        at = tl.min(tl.where((parents == at) & (tokens == token), lanes, nodes), axis=0)
    last = tl.load(last_sampled + slot)
    newest = all_tokens + slot * tokens_stride + total - 1
    first = tl.load(newest, mask=total > 0, other=0).to(tl.int64)
    second = tl.load(newest - 1, mask=total > 1, other=0).to(tl.int64)
    third = tl.load(newest - 2, mask=total > 2, other=0).to(tl.int64)
    is_on = known > 0
    for place in range(count):
        at = tl.min(tl.where(parents == at, lanes, nodes), axis=0)
        token = tl.sum(tl.where(lanes == at, tokens, 0), axis=0)
        confidence = tl.sum(tl.where(lanes == at, ((words >> odds_shift) + 0.5) / 16, 0.0), axis=0)
        # Outside the tree: the likeliest of what followed in the own text, in the group's, and in any.
        asks = is_on & (at == nodes)
        best = tl.zeros((), tl.int32)
        found = tl.zeros((), tl.int32)
        for source in tl.static_range(3):
            of = own_key if source == 0 else (key if source == 1 else key * 0)
            best, found = _likelier(
                followers, odds, of, first, second, third, asks, source * 12, best, found,
                words_bits, token_bits, check_shift, factor,
            )  # fmt: skip
        token = tl.where(asks, found, token)
        confidence = tl.where(asks, best / 1000, confidence)
        is_on = is_on & ((at < nodes) | (best > 0))
        third = second
        second = first
        first = token.to(tl.int64)
        tl.store(drafts + request * drafts_stride + place, tl.where(is_on, first, last))
        tl.store(confidences + request * drafts_stride + place, tl.where(is_on, confidence, no_confidence))


_kernel = triton.jit(_walk)


def walk(
    buffers: Any,
    selected: Any,
    followers: Any,
    odds: Any,
    slots: Any,
    total_len: Any,
    last_sampled: Any,
    all_tokens: Any,
    drafts: Any,
    confidences: Any,
) -> None:
    """Fills `drafts` and `confidences`, one row for each of `slots`; with the last token where a table says nothing."""
    if slots.shape[0] == 0:
        return
    _kernel[(slots.shape[0],)](
        buffers,
        selected,
        followers,
        odds,
        slots,
        total_len,
        last_sampled,
        all_tokens,
        drafts,
        confidences,
        all_tokens.stride(0),
        buffers.stride(0),
        drafts.stride(0),
        drafts.shape[1],
        **CONSTANTS,
        num_warps=1,
    )
