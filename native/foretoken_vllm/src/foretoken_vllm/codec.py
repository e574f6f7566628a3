"""Frames of the draft service to bytes and back, by proto/draft.proto (schema.py holds its copy).

The message classes are made from descriptors at import, so that any protobuf runtime that vLLM brings will do.
Every field of a decoded frame is checked here, once: an empty frame is valid protobuf.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from . import abi, schema

PROTOCOL_VERSION: Final = 1
TOKEN_BYTES: Final = 4
BODIES: Final = ("welcome", "registered", "updated", "fetched", "budget", "past")
# Upper bounds of what the fields around ids and tokens take (src/core/draft/service/limits.ts).
FRAME_OVERHEAD: Final = 64
GROUP_OVERHEAD: Final = 32
DELTA_OVERHEAD: Final = 24
COUNT_BYTES: Final = 5
# UTF-8 takes three bytes for a UTF-16 unit, and a name may take 256.
NAME_UNITS_MAX: Final = 85

STATUS: Final = dict(schema.ENUMS["Status"])
REASON: Final = dict(schema.ENUMS["Reason"])


class FrameError(Exception):
    """A frame that cannot be decoded, or means nothing."""


def _classes() -> dict[str, Any]:
    field_proto = descriptor_pb2.FieldDescriptorProto
    scalars = {
        "uint32": field_proto.TYPE_UINT32,
        "int32": field_proto.TYPE_INT32,
        "float": field_proto.TYPE_FLOAT,
        "double": field_proto.TYPE_DOUBLE,
        "string": field_proto.TYPE_STRING,
        "bytes": field_proto.TYPE_BYTES,
        "bool": field_proto.TYPE_BOOL,
    }
    file = descriptor_pb2.FileDescriptorProto(
        name="foretoken_vllm/draft.proto", package=schema.PACKAGE, syntax="proto3"
    )
    for name, values in schema.ENUMS.items():
        enum = file.enum_type.add(name=name)
        for value, number in values:
            enum.value.add(name=value, number=number)
    for name, rows in schema.MESSAGES.items():
        made = file.message_type.add(name=name)
        for field, number, kind, repeated, in_oneof in rows:
            added = made.field.add(name=field, number=number)
            added.label = field_proto.LABEL_REPEATED if repeated else field_proto.LABEL_OPTIONAL
            if kind in scalars:
                added.type = scalars[kind]
            else:
                is_enum = kind in schema.ENUMS
                added.type = field_proto.TYPE_ENUM if is_enum else field_proto.TYPE_MESSAGE
                added.type_name = f".{schema.PACKAGE}.{kind}"
            if in_oneof:
                if not made.oneof_decl:
                    made.oneof_decl.add(name="body")
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{schema.PACKAGE}.{name}"))
        for name in schema.MESSAGES
    }


_CLASSES: Final = _classes()


def cut_name(name: str) -> str:
    """What a peer takes of a name."""
    return name.encode("utf-16-le", "replace")[: 2 * NAME_UNITS_MAX].decode("utf-16-le", "ignore")


def client_frame() -> Any:
    """An empty ClientFrame, to be filled and serialised."""
    return _CLASSES["ClientFrame"]()


def server_frame() -> Any:
    """An empty ServerFrame."""
    return _CLASSES["ServerFrame"]()


def decode(frame: bytes) -> tuple[str, Any]:
    """The body's name and the body of a ServerFrame. Raises FrameError."""
    parsed = server_frame()
    try:
        parsed.ParseFromString(frame)
    except message.DecodeError as error:
        raise FrameError(f"undecodable: {error}") from error
    kind = parsed.WhichOneof("body")
    if kind not in BODIES:
        raise FrameError("the frame has no body")
    body = getattr(parsed, kind)
    if kind == "welcome":
        if body.protocol_version != PROTOCOL_VERSION or body.frame_bytes_max < 1024:
            raise FrameError(f"protocol {body.protocol_version}, frames of {body.frame_bytes_max}")
    elif kind == "budget":
        if body.ttl_ms == 0:
            raise FrameError("a budget that holds for no time")
    elif body.status == STATUS["STATUS_UNSPECIFIED"] or body.status not in STATUS.values():
        raise FrameError(f"status is {body.status}")
    if kind == "fetched":
        for group in body.groups:
            for delta in group.deltas:
                _check_delta(delta)
    if kind == "past":
        for tokens in body.responses:
            count, rest = divmod(len(tokens), TOKEN_BYTES)
            if rest != 0 or not 0 < count <= abi.GROUP_TOKENS_MAX:
                raise FrameError("a response of the past is empty or ends within a token")
    return kind, body


def _check_delta(delta: Any) -> None:
    count, rest = divmod(len(delta.tokens), TOKEN_BYTES)
    if rest != 0 or count == 0:
        raise FrameError("tokens is empty or ends within a token")
    if delta.sample_index >= abi.SEQUENCES_MAX or delta.offset + count > abi.GROUP_TOKENS_MAX:
        raise FrameError(f"sample {delta.sample_index}, offset {delta.offset}")
