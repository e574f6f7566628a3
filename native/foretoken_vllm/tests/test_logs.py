"""The link's logs: by offset, within their bounds; and where accepted tokens had been written."""

from __future__ import annotations

from array import array

from foretoken_vllm.logs import TRACE_BYTES_MAX, LinkGroup, LinkSample, Logs


def bytes_of(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def test_tokens_are_taken_by_offset() -> None:
    sample = LinkSample(0)
    assert sample.take(0, bytes_of(1, 2, 3)) == 3
    assert sample.take(1, bytes_of(2, 3, 4)) == 1
    assert sample.take(0, bytes_of(1, 2)) == 0
    assert sample.take(9, bytes_of(1)) == -1
    assert sample.part(0, 9) == bytes_of(1, 2, 3, 4)


def test_what_was_made_here_is_known_by_its_place() -> None:
    sample = LinkSample(0)
    for begin, end in ((0, 4), (4, 6), (10, 12)):
        sample.made_here(begin, end)
    assert [at for at in range(14) if sample.is_from_here(at)] == [0, 1, 2, 3, 4, 5, 10, 11]
    assert sample.own == [0, 6, 10, 12]


def group(*, here: tuple[int, ...], elsewhere: tuple[int, ...]) -> LinkGroup:
    made = LinkGroup("g", bytes_of(90, 91, 92), 0.0)
    own = made.sample(0)
    own.take(0, bytes_of(*here))
    own.made_here(0, len(here))
    made.sample(1).take(0, bytes_of(*elsewhere))
    return made


def test_text_that_only_others_wrote_is_from_elsewhere() -> None:
    one = group(here=(1, 2, 3), elsewhere=(7, 1, 2, 8, 9))
    assert one.origin(bytes_of(1, 2), [8, 9]) is True


def test_text_that_was_written_here_too_or_stands_in_the_prompt_is_not() -> None:
    one = group(here=(1, 2, 8, 9), elsewhere=(7, 1, 2, 8, 9))
    assert one.origin(bytes_of(1, 2), [8, 9]) is False
    assert one.origin(bytes_of(90, 91), [92]) is False


def test_text_that_nobody_wrote_is_from_nowhere() -> None:
    assert group(here=(1,), elsewhere=(2,)).origin(bytes_of(1), [2]) is None


def test_of_long_texts_the_newest_are_looked_at_and_the_rest_may_have_been_written_here() -> None:
    long = [50] * TRACE_BYTES_MAX
    one = group(here=(1, 2, 8, 9, *long), elsewhere=(7, 1, 2, 8, 9))
    assert one.origin(bytes_of(1, 2), [8, 9]) is None
    assert group(here=(*long, 1, 2, 8, 9), elsewhere=(7,)).origin(bytes_of(1, 2), [8, 9]) is False


def test_bytes_that_are_alike_across_two_tokens_are_no_text() -> None:
    # 0x01000000 and 0x00000001 hold the same bytes a byte apart.
    one = group(here=(5,), elsewhere=(0x0100, 0x02000000, 0))
    assert one.origin(b"", [1]) is None


def test_logs_beyond_their_bytes_or_number_let_the_one_used_longest_ago_go() -> None:
    logs = Logs(bytes_max=64, groups_max=2)
    for at, name in enumerate(("a", "b", "c")):
        logs.begin(name, bytes_of(1), float(at))
    assert list(logs.groups) == ["b", "c"]
    last = logs.groups["c"]
    logs.grow(last, last.sample(0).take(0, bytes_of(*range(15))) * 4)
    assert list(logs.groups) == ["c"] and logs.bytes == 64
    logs.expire(2.5)
    assert (list(logs.groups), logs.bytes) == ([], 0)


def test_a_group_with_another_prompt_begins_anew() -> None:
    logs = Logs(bytes_max=1 << 20, groups_max=8)
    first = logs.begin("a", bytes_of(1), 0.0)
    assert logs.begin("a", bytes_of(1), 1.0) is first
    assert logs.begin("a", bytes_of(2), 2.0) is not first
    assert logs.bytes == 4
