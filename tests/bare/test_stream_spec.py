"""The schemas of the stream specification, as they stand in its text."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

import bare
from bare import schema
from tests.bare.samples import vectors

SPECIFICATION = pathlib.Path(__file__).parents[3] / "shared" / "specs" / "stream_service.md"

pytestmark = pytest.mark.skipif(
    not SPECIFICATION.exists(), reason="the specification is not here: ../shared/specs/stream_service.md"
)

# The names that each block defines, in the order of the text.
NAMES = [
    ["CreateStreamRequest"],
    ["Init"],
    ["PushRequest"],
    ["Status", "PushConfirm"],
    ["PullRequest"],
    ["PullResponse", "StreamMessage"],
    ["GetIndex"],
    ["Index"],
    ["SaveIndex"],
    ["CreatePartitionedStreamRequest"],
    ["CreatePartitionedStreamResponse"],
    ["GetPartitionIndex", "SavePartitionIndex", "Request"],
    ["PartitionIndex"],
    ["BasePayload"],
    ["Request"],
    ["Init"],
    ["PushRequest"],
    ["Status", "PushConfirm"],
    ["PullRequest"],
    ["PullResponse", "StreamMessage"],
    ["GetIndex", "SaveIndex", "Request"],
    ["Index"],
    ["Request"],
    ["Init"],
    ["GetIndex", "SaveIndex", "Request"],
    ["Index"],
    ["Error"],
]

# The block whose union names types that only earlier blocks define.
INCOMPLETE = 11


@pytest.fixture(scope="module")
def specification() -> str:
    return SPECIFICATION.read_text(encoding="utf-8")


def test_all_blocks_load_as_they_stand(specification: str) -> None:
    loaded = schema.load_blocks(specification)
    assert [list(part) for part in loaded] == NAMES
    for part in loaded:
        for name in part:
            part.encoder(name)
            part.decoder(name)


def test_all_blocks_but_one_load_alone(specification: str) -> None:
    for number, block in enumerate(schema.blocks(specification)):
        if number == INCOMPLETE:
            with pytest.raises(bare.SchemaError, match="GetIndex is not defined"):
                schema.load(block.text)
        else:
            assert list(schema.load(block.text)) == NAMES[number]


def test_blocks_read_the_same_in_the_current_syntax(specification: str) -> None:
    for number, block in enumerate(schema.blocks(specification)):
        if number != INCOMPLETE:
            document = schema.parse(block.text, "legacy")
            assert schema.parse(schema.format(document), "current") == document


def value_of(part: schema.Schema, name: str, fields: dict[str, Any]) -> Any:
    """The value that a vector describes: numbers as text, data as hexadecimal in `<name>_hex`."""
    made = dict(fields)
    for key, field in fields.items():
        if key.endswith("_hex"):
            made[key.removesuffix("_hex")] = bytes.fromhex(made.pop(key))
        elif key in ("request_id", "index", "limit"):
            made[key] = int(field)
        elif key == "status":
            made[key] = part.types["Status"][field.upper()]
        elif key == "messages":
            made[key] = [value_of(part, "StreamMessage", message) for message in field]
    return part.types[name](**made)


def test_messages_of_bare_ts_are_those_of_the_specification(specification: str) -> None:
    parts = {name: part for part in reversed(schema.load_blocks(specification)[:INCOMPLETE]) for name in part}
    checked = 0
    for case in vectors("stream_messages.json")["vectors"]:
        if case["type"] in parts:
            part, message = parts[case["type"]], bytes.fromhex(case["hex"])
            value = value_of(part, case["type"], case["value"])
            assert part.encode(case["type"], value) == message
            assert part.decode(case["type"], message) == value
            checked += 1
    assert checked == 15
