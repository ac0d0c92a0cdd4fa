"""Goal: the door's own reader and writer of protobuf agree with Google's, in every message.

Method: Google's library makes classes from the door's own description of its files, which the library checks, and both
sides read what the other writes. The published field numbers are compared with facts/block_node.md §1 by golden bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from block_node.blocks.files import read_items as read_file_items
from block_node.blocks.items import item_prefix
from block_node.grpc.messages import (
    BLOCK_NODE,
    HEALTH,
    NO_BLOCK,
    PUBLISHED_SET,
    REFLECTION,
    REFLECTION_ALPHA,
    ItemSet,
    MessageFormatError,
    block_prefix,
    find_set,
    items_prefix,
    known_block,
    read_message,
    write_message,
)
from block_node.grpc.schema import SCALARS, ProtoFile
from block_node.protocol import Piece

U64 = st.integers(0, 2**64 - 1)
FILES = [BLOCK_NODE, HEALTH, REFLECTION, REFLECTION_ALPHA]


def classes_of(file: ProtoFile) -> dict[str, Any]:
    """Google's classes of the messages of a file, by their names there."""
    pytest.importorskip("google.protobuf", reason="protobuf comes with the extra protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(file.descriptor()))
    return {
        each.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{each.path}"))
        for each in file.types.values()
        if each.what == "message"
    }


def messages_of(file: ProtoFile, name: str, depth: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    """Messages with all fields that they can have, as dictionaries."""
    owner = file.message(name)

    def values(kind: str) -> st.SearchStrategy[Any]:
        if kind in SCALARS:
            return {
                "uint64": U64,
                "int32": st.integers(0, 2**31 - 1),
                "bool": st.booleans(),
                "string": st.text(max_size=20),
                "bytes": st.binary(max_size=200),
            }[kind]
        found = file.find_type(owner, kind)
        if found.what == "enum":
            return st.sampled_from([number for _, number in found.values])
        return messages_of(file, kind, depth - 1)

    plain = {
        field.name: values(field.kind)
        for field in owner.fields.values()
        if field.oneof is None and not field.is_repeated
    }
    lists = {
        field.name: st.lists(values(field.kind), max_size=3) for field in owner.fields.values() if field.is_repeated
    }
    choices: list[st.SearchStrategy[dict[str, Any]]] = [st.just({})]
    choices += [
        st.fixed_dictionaries({field.name: values(field.kind)}) for field in owner.fields.values() if field.oneof
    ]
    base = st.fixed_dictionaries({}, optional={**plain, **lists})
    return st.builds(lambda left, right: {**left, **right}, base, st.one_of(choices))


def without_defaults(message: Any, name: str, file: ProtoFile) -> Any:
    """The same message as a reader finds it: plain fields with their default values are absent."""
    owner = file.message(name)
    found = {}
    for field in owner.fields.values():
        value = message.get(field.name)
        if value is None or (not value and field.oneof is None and not isinstance(value, dict)):
            continue
        is_message = field.kind not in SCALARS and file.find_type(owner, field.kind).what == "message"
        if is_message and field.is_repeated:
            value = [without_defaults(each, field.kind, file) for each in value]
        elif is_message:
            value = without_defaults(value, field.kind, file)
        found[field.name] = value
    return found


def as_google(made: Any, message: dict[str, Any]) -> Any:
    for name, value in message.items():
        if isinstance(value, dict):
            getattr(made, name).SetInParent()
            as_google(getattr(made, name), value)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, dict):
                    as_google(getattr(made, name).add(), each)
                else:
                    getattr(made, name).append(each)
        else:
            setattr(made, name, value)
    return made


ALL = [(file, each.name) for file in FILES for each in file.types.values() if each.what == "message"]


@pytest.mark.parametrize(("file", "name"), ALL, ids=[f"{file.package}.{name}" for file, name in ALL])
def test_each_message_is_what_google_reads_and_writes(file: ProtoFile, name: str) -> None:
    google = classes_of(file)[name]

    @given(messages_of(file, name))
    def check(message: dict[str, Any]) -> None:
        data = write_message(name, message, file)
        theirs = as_google(google(), message)
        assert google.FromString(data) == theirs
        assert read_message(name, theirs.SerializeToString(), file) == without_defaults(message, name, file)
        assert read_message(name, data, file) == without_defaults(message, name, file)

    check()


GOLDEN = [
    ("PublishStreamResponse", {"acknowledgement": {}}, "0a00"),
    ("PublishStreamResponse", {"acknowledgement": {"block_number": 300}}, "0a0308ac02"),
    (
        "PublishStreamResponse",
        {"end_stream": {"status": 5, "block_number": NO_BLOCK, "proximate_block_number": 7}},
        "120f080510ffffffffffffffffff011807",
    ),
    ("PublishStreamResponse", {"skip_block": {}}, "1a00"),
    ("PublishStreamResponse", {"resend_block": {"block_number": 1}}, "22020801"),
    ("PublishStreamResponse", {"node_behind_publisher": {"block_number": NO_BLOCK}}, "2a0b08ffffffffffffffffff01"),
    ("PublishStreamRequest", {"end_of_block": {}}, "1a00"),
    (
        "PublishStreamRequest",
        {"end_stream": {"end_code": 4, "earliest_block_number": 2, "latest_block_number": 9}},
        "1206080410021809",
    ),
    ("PublishStreamRequest", {"block_items": {"block_items": [b"\x0a\x00"]}}, "0a040a020a00"),
    ("SubscribeStreamRequest", {"start_block_number": 1, "end_block_number": 2}, "08011002"),
    ("SubscribeStreamResponse", {"status": 1}, "0801"),
    ("SubscribeStreamResponse", {"status": 0}, "0800"),
    ("SubscribeStreamResponse", {"end_of_block": {}}, "1a00"),
    ("BlockRequest", {"block_number": 0}, "0800"),
    ("BlockRequest", {"retrieve_latest": True}, "1001"),
    ("BlockResponse", {"status": 5}, "0805"),
    (
        "ServerStatusResponse",
        {"last_available_block": 5, "only_latest_state": True, "next_expected_block": 6},
        "100518012006",
    ),
]


@pytest.mark.parametrize(("name", "message", "data"), GOLDEN, ids=[f"{name} {data}" for name, _, data in GOLDEN])
def test_golden_bytes(name: str, message: dict[str, Any], data: str) -> None:
    assert write_message(name, message).hex() == data
    assert read_message(name, bytes.fromhex(data)) == message


def split_set(data: bytes) -> list[bytes]:
    """All items of a set."""
    return ItemSet(data).take(len(data), len(data))[0]


@given(st.lists(st.one_of(st.binary(max_size=300), st.integers(16_380, 16_390).map(bytes)), max_size=20))
def test_a_set_of_items_is_cut_at_its_lengths(items: list[bytes]) -> None:
    inner = b"".join(item_prefix(len(item)) + item for item in items)
    assert split_set(inner) == items
    request = write_message("PublishStreamRequest", {"block_items": {"block_items": items}})
    whole = find_set(request, PUBLISHED_SET)
    assert whole is not None
    assert whole.take(len(request), len(request)) == (items, Piece.WHOLE)
    # Taken a part at a time, the items are the same ones.
    taken: list[bytes] = []
    pieces: list[bytes] = []
    in_parts = find_set(request, PUBLISHED_SET)
    while in_parts is not None and in_parts.left_bytes:
        part, piece = in_parts.take(3, 400)
        assert 0 < len(part) <= 3
        if piece is Piece.WHOLE:
            taken += part
            assert not pieces
            continue
        # A larger item comes alone, in pieces of that size.
        assert len(part) == 1
        assert len(part[0]) == 400 or piece is Piece.LAST
        assert (piece is Piece.FIRST) == (not pieces)
        pieces += part
        if piece is Piece.LAST:
            taken.append(b"".join(pieces))
            pieces.clear()
    assert taken == items
    # Every way to cut it short is an error, or a shorter set of whole items.
    for cut in range(max(0, len(inner) - 40), len(inner)):
        try:
            found = split_set(inner[:cut])
        except MessageFormatError:
            continue
        assert found == items[: len(found)]


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05abc", b"\x12\x00", b"\x0a\x80", b"\x0a\x80\x80", b"\x08\x01"])
def test_what_is_no_set_of_items_is_refused(data: bytes) -> None:
    with pytest.raises(MessageFormatError):
        split_set(data)


@pytest.mark.parametrize("request_", [b"", b"\x1a\x00", b"\x0a\x00\x1a\x00", b"\x12\x02\x08\x01"])
def test_other_requests_are_left_to_the_general_reader(request_: bytes) -> None:
    assert find_set(request_, PUBLISHED_SET) is None


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_read_or_refused(data: bytes) -> None:
    for file, name in ALL:
        try:
            read_message(name, data, file)
        except MessageFormatError:
            continue


def test_the_last_of_a_group_counts_and_unknown_fields_are_passed_over() -> None:
    data = bytes.fromhex("08051001") + b"\xf8\x07\x01"
    assert read_message("BlockRequest", data) == {"retrieve_latest": True}


@pytest.mark.parametrize(("number", "block"), [(0, 0), (2**63 - 1, 2**63 - 1), (2**63, None), (NO_BLOCK, None)])
def test_numbers_that_no_block_can_have_name_none(number: int, block: int | None) -> None:
    assert known_block(number) == block


def test_real_blocks_are_the_content_of_both_messages(shared_dir: Path) -> None:
    for path in sorted((shared_dir / "data" / "hiero").rglob("*.blk.gz")):
        items = list(read_file_items(path))
        block = b"".join(item_prefix(len(item)) + item for item in items)
        assert split_set(block) == items
        answer = read_message("BlockResponse", block_prefix(1, len(block)) + block)
        assert answer == {"status": 1, "block": {"items": items}}
        part = read_message("SubscribeStreamResponse", items_prefix(len(block)) + block)
        assert part == {"block_items": {"block_items": items}}
