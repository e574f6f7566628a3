"""Frames are those of the other host, and what a peer sends wrongly is named and goes no further."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format

from foretoken_vllm.codec import FrameError, client_frame, cut_name, decode, server_frame
from golden import frames

FRAMES = frames()


def parsed(vector: Any, key: str) -> Any:
    frame = client_frame() if vector["side"] == "client" else server_frame()
    frame.ParseFromString(bytes.fromhex(vector[key]))
    return frame


def whole(value: Any) -> Any:
    """Protobuf's JSON has 64-bit numbers as text, and leaves out what is empty."""
    if isinstance(value, dict):
        return {key: whole(inner) for key, inner in value.items() if inner not in ([], {}, "")}
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    return value


@pytest.mark.parametrize("vector", FRAMES, ids=lambda vector: str(vector["name"]))
def test_frames_of_the_other_host_are_read_and_written_alike(vector: Any) -> None:
    frame = parsed(vector, "frame")
    assert frame.SerializeToString(deterministic=True).hex() == vector["canonical"]
    found = json_format.MessageToDict(frame, preserving_proto_field_name=True)
    assert whole(found) == whole(vector["body"])


@pytest.mark.parametrize("vector", [v for v in FRAMES if v["side"] == "server"], ids=lambda v: str(v["name"]))
def test_every_answer_of_a_server_is_taken(vector: Any) -> None:
    kind, _body = decode(bytes.fromhex(vector["frame"]))
    assert kind == next(iter(vector["body"]))


@pytest.mark.parametrize("vector", [v for v in FRAMES if v["side"] == "server"], ids=lambda v: str(v["name"]))
def test_a_frame_cut_anywhere_is_a_frame_error_or_a_frame(vector: Any) -> None:
    frame = bytes.fromhex(vector["frame"])
    for end in range(len(frame)):
        try:
            decode(frame[:end])
        except FrameError:
            continue


def broken(**fields: Any) -> bytes:
    frame = server_frame()
    name, values = next(iter(fields.items()))
    body = getattr(frame, name)
    body.SetInParent()
    for key, value in values.items():
        setattr(body, key, value)
    return bytes(frame.SerializeToString())


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (b"", "no body"),
        (b"\xff\xff", "undecodable"),
        (broken(welcome={"protocol_version": 2, "frame_bytes_max": 4096}), "protocol 2"),
        (broken(welcome={"protocol_version": 1, "frame_bytes_max": 10}), "frames of 10"),
        (broken(updated={"epoch": 1}), "status is 0"),
        (broken(registered={"status": 9}), "status is 9"),
        (broken(budget={"step_tokens": 1}), "no time"),
    ],
)
def test_a_frame_that_means_nothing_is_refused(frame: bytes, problem: str) -> None:
    with pytest.raises(FrameError, match=problem):
        decode(frame)


@pytest.mark.parametrize(
    ("tokens", "sample", "offset"), [(b"", 0, 0), (b"abc", 0, 0), (b"abcd", 4096, 0), (b"abcd", 0, 2**30)]
)
def test_a_delta_out_of_range_is_refused(tokens: bytes, sample: int, offset: int) -> None:
    frame = server_frame()
    frame.fetched.status = 1
    group = frame.fetched.groups.add(group_id="g")
    group.deltas.add(sample_index=sample, offset=offset, tokens=tokens)
    with pytest.raises(FrameError):
        decode(frame.SerializeToString())


def test_a_long_name_is_cut_to_what_a_peer_takes() -> None:
    assert cut_name("http://127.0.0.1:8000") == "http://127.0.0.1:8000"
    assert len(cut_name("é" * 300)) == 85
    assert len(cut_name("😀" * 300).encode("utf-8")) <= 256
