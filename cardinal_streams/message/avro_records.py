"""The Avro records of the message layer, with their schemas from the specification.

The modules `avro_reader` and `avro_writer` read and write the bytes. All values are plain Avro binary, without an
object container, a magic or a fingerprint.

    record   field field …                      varint   zigzag, 7 bits a byte, least significant first
    bytes    varint(length) raw                 string   as bytes, UTF-8 or not
    map      block … 00                         block    varint(-n) varint(size) item, n times
    array    block … 00                                  varint(n) item, n times"""

from __future__ import annotations

from typing import TypedDict


class UpdateRecord(TypedDict):
    """One entry of `BatchRecord.updates`. At most one field is set; others are empty, 0, False or 32 zero bytes."""

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
    num: int
    weight: bytes
    parent: bytes
    updates: dict[str, UpdateRecord]


# {"type": "record", "name": "update", "fields": [
#   {"name": "delete", "type": {"name": "del", "type": "array", "items": "string"}},
#   {"name": "updates", "type": {"name": "upd", "type": "map", "values": "bytes"}}]}
class SubBatchRecord(TypedDict):
    delete: list[str]
    updates: dict[str, bytes]
