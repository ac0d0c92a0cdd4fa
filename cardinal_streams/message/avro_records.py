"""The Avro records of the message layer, with their schemas as the specification gives them. No bytes are read or
written here: `avro_reader` and `avro_writer` do that.

All values are bare Avro binary: there is no object container, no magic and no fingerprint.

    record   field field …                      varint   zigzag, 7 bits a byte, least significant first
    bytes    varint(length) raw                 string   as bytes, UTF-8
    map      block … 00                         block    varint(-n) varint(size) item, n times
    array    block … 00                                  varint(n) item, n times
"""

from __future__ import annotations

from typing import TypedDict


class UpdateRecord(TypedDict):
    """One entry of `BatchRecord.updates`. A field that says nothing is empty, 0, False or 32 zeros."""

    value: bytes
    count: int
    delete: bool
    subbatch: bytes


# {"type": "record", "name": "batch", "avro.codec": "snappy", "namespace": "cloud.rivet.cardinal", "fields": [
#   {"name": "num", "type": "long"},
#   {"name": "weight", "type": "bytes"},
#   {"name": "parent", "type": {"name": "par", "type": "fixed", "size": 32}},
#   {"name": "updates", "type": {"name": "upd", "type": "map", "values":
#     {"type": "record", "name": "update", "fields": [
#       {"name": "value", "type": "bytes"},
#       {"name": "count", "type": "int"},
#       {"name": "delete", "type": "boolean"},
#       {"name": "subbatch", "type": {"name": "subb", "type": "fixed", "size": 32}}]}}}]}
class BatchRecord(TypedDict):
    """The value of a Batch message."""

    num: int
    weight: bytes
    parent: bytes
    updates: dict[str, UpdateRecord]


# {"type": "record", "name": "update", "fields": [
#   {"name": "delete", "type": {"name": "del", "type": "array", "items": "string"}},
#   {"name": "updates", "type": {"name": "upd", "type": "map", "values": "bytes"}}]}
class SubBatchRecord(TypedDict):
    """The value of a SubBatchMsg message."""

    delete: list[str]
    updates: dict[str, bytes]
