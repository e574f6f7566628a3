"""The device's half of a draft: walks each request's table with the tokens just sampled, one Triton kernel a step."""

from typing import Any

from vllm.triton_utils import tl, triton

from .table import NODES, TOKEN_BITS


# Without types: Triton looks a parameter's up, and takes none but its own.
def _walk(  # type: ignore[no-untyped-def]  # noqa: ANN202
    buffers,  # noqa: ANN001 - *int32 [2, slots, 1 + nodes] (table.py)
    selected,  # noqa: ANN001 - *int32 [1]
    slots,  # noqa: ANN001 - *int [requests]: of the batch's requests
    total_len,  # noqa: ANN001 - *int32 [slots]: tokens, those just sampled included
    last_sampled,  # noqa: ANN001 - *int64 [slots]
    all_tokens,  # noqa: ANN001 - *int32 [slots, tokens_stride]
    drafts,  # noqa: ANN001 - *int64 [requests, drafts_stride]
    tokens_stride,  # noqa: ANN001
    buffer_words,  # noqa: ANN001
    drafts_stride,  # noqa: ANN001
    count,  # noqa: ANN001
    nodes: tl.constexpr,
    lane_count: tl.constexpr,
    token_bits: tl.constexpr,
):
    request = tl.program_id(0)
    slot = tl.load(slots + request).to(tl.int64)
    row = buffers + tl.load(selected) * buffer_words + slot * (1 + nodes)
    known = tl.load(row)
    total = tl.load(total_len + slot)
    lanes = tl.arange(0, lane_count)
    words = tl.load(row + 1 + lanes, mask=lanes < nodes, other=-1)
    # A place without a node has a parent that no walk reaches.
    parents = tl.where(words < 0, nodes + 1, (words >> token_bits) - 1)
    tokens = words & ((1 << token_bits) - 1)
    # `nodes`: the walk has left the tree.
    at = tl.where((known > 0) & (known <= total) & (total <= known + nodes), -1, nodes)
    # A stale table, or another request's, says nothing.
    known = tl.where(at < 0, known, 0)
    for place in range(tl.where(at < 0, known, total), total):
        token = tl.load(all_tokens + slot * tokens_stride + place)
        at = tl.min(tl.where((parents == at) & (tokens == token), lanes, nodes), axis=0)
    if (at == nodes) & (known > 0) & (total > 1):
        # The text may only have been delayed: a node behind the same two tokens, else the likeliest of the same token.
        newest = all_tokens + slot * tokens_stride + total - 1
        same = tokens == tl.load(newest)
        has_parent = (parents >= 0) & (parents < nodes)
        before = tl.load(row + 1 + parents, mask=has_parent, other=0) & ((1 << token_bits) - 1)
        both = same & has_parent & (before == tl.load(newest - 1))
        at = tl.min(tl.where(both, lanes, nodes), axis=0)
        if at == nodes:
            at = tl.min(tl.where(same & (parents < nodes), lanes, nodes), axis=0)
    last = tl.load(last_sampled + slot)
    for place in range(count):
        at = tl.min(tl.where(parents == at, lanes, nodes), axis=0)
        token = tl.sum(tl.where(lanes == at, tokens, 0), axis=0).to(tl.int64)
        tl.store(drafts + request * drafts_stride + place, tl.where(at < nodes, token, last))


_kernel = triton.jit(_walk)


def walk(
    buffers: Any, selected: Any, slots: Any, total_len: Any, last_sampled: Any, all_tokens: Any, drafts: Any
) -> None:
    """Fills `drafts`, one row for each of `slots`; with the request's last token where its table says nothing."""
    if slots.shape[0] == 0:
        return
    _kernel[(slots.shape[0],)](
        buffers,
        selected,
        slots,
        total_len,
        last_sampled,
        all_tokens,
        drafts,
        all_tokens.stride(0),
        buffers.stride(0),
        drafts.stride(0),
        drafts.shape[1],
        nodes=NODES,
        lane_count=triton.next_power_of_2(NODES),
        token_bits=TOKEN_BITS,
        num_warps=1,
    )
