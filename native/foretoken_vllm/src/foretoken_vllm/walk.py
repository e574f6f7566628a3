"""The device's half of a draft: walks each request's table with the tokens just sampled, one Triton kernel a step.

Where a head has drafted before it, the walk goes along the head's tokens, replaces those that the table knows better
and lengthens the draft; what both said goes to the host, which learns from it (evidence.py).
"""

from typing import Any

from vllm.triton_utils import tl, triton

from . import abi
from .table import CHECK_SHIFT, FACTOR, KINDS, MATCH_BOUNDS, ODDS_SHIFT, TREE_KINDS

# What vLLM's adaptive verification gets for a place that has no draft.
_NO_CONFIDENCE = tl.constexpr(0.01)
# Kernels read no other globals.
_NODES = tl.constexpr(abi.TABLE_NODES)
_LANES = tl.constexpr(triton.next_power_of_2(abi.TABLE_NODES))
_TOKEN_BITS = tl.constexpr(abi.TABLE_TOKEN_BITS)
_TOKEN_MASK = tl.constexpr((1 << abi.TABLE_TOKEN_BITS) - 1)
_PARENT_MASK = tl.constexpr((1 << abi.TABLE_PARENT_BITS) - 1)
_ODDS_SHIFT = tl.constexpr(ODDS_SHIFT)
_HEAD_WORDS = tl.constexpr(abi.TABLE_HEAD_WORDS)
_ROW_WORDS = tl.constexpr(abi.TABLE_ROW_WORDS)
_FOLLOWERS_SHIFT = tl.constexpr(31 - abi.FOLLOWERS_BITS)
_CHECK_SHIFT = tl.constexpr(CHECK_SHIFT)
_FACTOR = tl.constexpr(FACTOR)
_KINDS = tl.constexpr(KINDS)
_TREE_KINDS = tl.constexpr(TREE_KINDS)
_SHORT = tl.constexpr(MATCH_BOUNDS[0])
_LONG = tl.constexpr(MATCH_BOUNDS[1])


@triton.jit
def _mixed(mixture, token):  # type: ignore[no-untyped-def]
    """The one of assembly/followers.ts."""
    product = ((mixture ^ token) * _FACTOR) & 0x7FFFFFFF
    return product ^ (product >> 15)


@triton.jit
def _likelier(words, odds, key, first, second, third, asks, kind, best, found, of):  # type: ignore[no-untyped-def]
    """Odds, token and kind of the likeliest follower: of `found`, and those of the key, whose odds begin at `kind`."""
    mixture = key
    for back in tl.static_range(3):
        mixture = _mixed(mixture, first if back == 0 else (second if back == 1 else third))
        word = tl.load(words + (mixture >> _FOLLOWERS_SHIFT), mask=asks, other=0)
        is_known = (word != 0) & ((word >> _CHECK_SHIFT) == (mixture & 255))
        own = kind + (2 - back) * 4 + ((word >> _TOKEN_BITS) & 3)
        odd = tl.load(odds + own, mask=is_known, other=0)
        found = tl.where(odd > best, word & _TOKEN_MASK, found)
        of = tl.where(odd > best, own, of)
        best = tl.maximum(best, odd)
    return best, found, of


# Without types: Triton looks a parameter's up, and takes none but its own.
def _walk(  # type: ignore[no-untyped-def]
    buffers,  # *int32 [2, slots, row words] (assembly/tables.ts)
    selected,  # *int32 [1]
    followers,  # *int32 [followers] (assembly/followers.ts)
    odds,  # *int32
    slots,  # *int [requests]: of the batch's requests
    total_len,  # *int32 [slots]: tokens, those just sampled included
    last_sampled,  # *int64 [slots]
    all_tokens,  # *int32 [slots, tokens_stride]
    drafts,  # *int64 [requests, drafts_stride]
    confidences,  # *float32 [requests, drafts_stride]: of a draft token, where those before it are right
    rather,  # *int32 [places, kinds + 1] (evidence.py); this and the next two only where there is a head
    seen,  # *int32 [slots, 1 + 2 * drafts_stride] (evidence.py)
    kept,  # *int32 [slots]: leading tokens of the draft that are the head's
    asked,  # tokens that the head has drafted
    tokens_stride,
    buffer_words,
    drafts_stride,
    count,
    has_head: tl.constexpr,
):
    request = tl.program_id(0)
    slot = tl.load(slots + request).to(tl.int64)
    row = buffers + tl.load(selected) * buffer_words + slot * _ROW_WORDS
    known = tl.load(row)
    key = tl.load(row + 1).to(tl.int64)
    own_key = tl.load(row + 2).to(tl.int64)
    total = tl.load(total_len + slot)
    lanes = tl.arange(0, _LANES)
    words = tl.load(row + _HEAD_WORDS + lanes, mask=lanes < _NODES, other=-1)
    # A place without a node has a parent that no walk reaches.
    parents = tl.where(words < 0, _NODES + 1, ((words >> _TOKEN_BITS) & _PARENT_MASK) - 1)
    tokens = words & _TOKEN_MASK
    # _NODES: the walk has left the tree.
    at = tl.where((known > 0) & (known <= total) & (total <= known + _NODES), -1, _NODES)
    # A stale table, or another request's, says nothing.
    known = tl.where(at < 0, known, 0)
    for place in range(tl.where(at < 0, known, total), total):
        token = tl.load(all_tokens + slot * tokens_stride + place)
        at = tl.min(tl.where((parents == at) & (tokens == token), lanes, _NODES), axis=0)
    last = tl.load(last_sampled + slot)
    newest = all_tokens + slot * tokens_stride + total - 1
    first = tl.load(newest, mask=total > 0, other=0).to(tl.int64)
    second = tl.load(newest - 1, mask=total > 1, other=0).to(tl.int64)
    third = tl.load(newest - 2, mask=total > 2, other=0).to(tl.int64)
    # Whether the table may be asked, and whether the draft may go on: with what is in neither, it ends.
    has_table = known > 0
    is_on = has_table | (asked > 0)
    matched = tl.load(row + 3) + total - known
    said = seen + slot * (2 * drafts_stride + 1)
    if has_head:
        tl.store(said, total)
        tl.store(kept + slot, 0)
    # Until another token is drafted, the head's next one continues the draft.
    follows = asked > 0
    for place in range(count):
        before = at
        at = tl.min(tl.where(parents == before, lanes, _NODES), axis=0)
        token = tl.sum(tl.where(lanes == at, tokens, 0), axis=0)
        odd = tl.sum(tl.where(lanes == at, words >> _ODDS_SHIFT, 0), axis=0)
        # Outside the tree: the likeliest of what followed in the own text, in the group's, and in any.
        asks = is_on & has_table & (at == _NODES)
        best = tl.zeros((), tl.int32)
        found = tl.zeros((), tl.int32)
        kind = tl.zeros((), tl.int32)
        for source in tl.static_range(3):
            of = own_key if source == 0 else (key if source == 1 else key * 0)
            best, found, kind = _likelier(
                followers, odds, of, first, second, third, asks, source * 12, best, found, kind
            )
        token = tl.where(asks, found, token)
        confidence = tl.where(asks, best / 1000, (odd + 0.5) / 16)
        is_known = is_on & has_table & ((at < _NODES) | (best > 0))
        if has_head:
            at_place = request * drafts_stride + place
            has_own = follows & (place < asked)
            own = tl.load(drafts + at_place, mask=has_own, other=-1).to(tl.int32)
            length = (matched + place >= _SHORT).to(tl.int32) + (matched + place >= _LONG).to(tl.int32)
            kind = tl.where(at < _NODES, (odd >> 1) * 3 + length, _TREE_KINDS + kind)
            kind = tl.where(is_known, kind, _KINDS)
            tl.store(said + 1 + place, own)
            tl.store(said + 1 + drafts_stride + place, tl.where(is_known, token | (kind << _TOKEN_BITS), -1))
            is_righter = tl.load(rather + place * (_KINDS + 1) + kind) != 0
            takes = is_known & ((own == token) | (has_own == 0) | is_righter)
            # The head's own, which says nothing unless vLLM's adaptive verification is on.
            of_head = tl.load(confidences + at_place, mask=has_own, other=0.0)
            of_both = tl.where(own == token, tl.maximum(confidence, of_head), confidence)
            confidence = tl.where(takes, of_both, of_head)
            token = tl.where(takes, token, own)
            follows = has_own & (own == token)
            tl.store(kept + slot, place + 1, mask=follows)
            is_known = takes | has_own
            # The table's likeliest, or another one that it has behind the same token.
            at = tl.min(tl.where((parents == before) & (tokens == token), lanes, _NODES), axis=0)
        is_on = is_on & is_known
        third = second
        second = first
        first = token.to(tl.int64)
        tl.store(drafts + request * drafts_stride + place, tl.where(is_on, first, last))
        tl.store(confidences + request * drafts_stride + place, tl.where(is_on, confidence, _NO_CONFIDENCE))


_kernel = triton.jit(_walk, do_not_specialize=["asked", "count"])


def walk(
    views: tuple[Any, Any, Any],
    odds: Any,
    slots: Any,
    total_len: Any,
    last_sampled: Any,
    all_tokens: Any,
    drafts: Any,
    confidences: Any,
    asked: int = 0,
    *,
    head: tuple[Any, ...] = (),
    count: int | None = None,
) -> None:
    """Fills `drafts` and `confidences`, one row for each of `slots`; with the last token where a table says nothing.

    `views`: buffers, selected and followers. `head`: rather, seen and kept, where the first `asked` of `drafts` and of
    `confidences` are a head's. `count`: of a request.
    """
    requests, count = slots.shape[0], drafts.shape[1] if count is None else count
    if requests == 0:
        return
    given = (*views, odds, slots, total_len, last_sampled, all_tokens, drafts, confidences, *(head or views))
    sizes = asked, all_tokens.stride(0), views[0].stride(0), drafts.stride(0), count
    _kernel[(requests,)](*given, *sizes, has_head=len(head) > 0, num_warps=1)
