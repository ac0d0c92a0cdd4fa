"""Bounds for decoding: refuses CBOR and Avro data whose decoding would take far more time or memory than its size.
A message is decoded in the event loop, and a hundred bytes can stand for billions of values: by references to earlier
values, compression, arrays of values without bytes, and types that contain themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CBOR_DEPTH_MAX = 64
CBOR_TAGS = frozenset({0, 1, 2, 3, 24, 32, 33, 34, 37, 55_799})
"""The tags that are decoded, such as for times, large integers and texts. Tags for references and arithmetic are
refused."""
AVRO_DEPTH_MAX = 50
AVRO_WORK_MAX = 2_000
"""The most values that one record may have outside of its arrays and maps."""
AVRO_BYTE_WORK_MAX = 20
"""The most values that one byte of an array or a map may stand for."""
_CBOR_ENDLESS = -1
_PRIMITIVES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}


def check_cbor(data: bytes) -> None:
    """Raises ValueError if CBOR data has tags that are not decoded, is nested too deeply, or ends too early."""
    # For each open value, the number of its inner values that are still to come. A tag has one inner value.
    open_values = [1]
    at = 0
    while open_values:
        if not open_values[-1]:
            open_values.pop()
            continue
        if at >= len(data):
            raise ValueError("the data is cut")
        major, info = data[at] >> 5, data[at] & 31
        at += 1
        number = info
        if 24 <= info < 28:
            size = 1 << (info - 24)
            number = int.from_bytes(data[at : at + size], "big")
            at += size
        elif info >= 28 and not (info == 31 and major in (2, 3, 4, 5, 7)):
            raise ValueError("a length is not valid")
        is_endless = info == 31
        if is_endless and major == 7:
            if open_values.pop() != _CBOR_ENDLESS:
                raise ValueError("the end of a value is not valid")
            continue
        if open_values[-1] != _CBOR_ENDLESS:
            open_values[-1] -= 1
        if is_endless:
            open_values.append(_CBOR_ENDLESS)
        elif major in (2, 3):
            at += number
        elif major in (4, 5):
            open_values.append(number * (major - 3))
        elif major == 6:
            if number not in CBOR_TAGS:
                raise ValueError(f"values with the tag {number} are not decoded")
            open_values.append(1)
        if len(open_values) > CBOR_DEPTH_MAX:
            raise ValueError(f"values are nested more than {CBOR_DEPTH_MAX} deep")
    if at > len(data):
        raise ValueError("the data is cut")


def check_avro(codec: str, schema: Any) -> None:
    """Raises ValueError if a small Avro file with this schema can contain very large values."""
    if codec != "null":
        raise ValueError(f"it is compressed ({codec[:20]})")
    _, work = _weigh(schema, {}, (), 0)
    if work > AVRO_WORK_MAX:
        raise ValueError(f"a record has more than {AVRO_WORK_MAX} values")


def _weigh(schema: Any, named: dict[str, tuple[int, int]], around: tuple[str, ...], depth: int) -> tuple[int, int]:
    """Returns the smallest size of a value of this type in bytes, and the number of values inside such a value.
    named: the weights of the named types so far. around: the names of the types that contain this type."""
    if depth > AVRO_DEPTH_MAX:
        raise ValueError(f"types are nested more than {AVRO_DEPTH_MAX} deep")
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema], 1
        name = _short(schema)
        if name in around or name not in named:
            raise ValueError("a type contains itself, or is not there")
        return named[name]
    if isinstance(schema, list):
        # The number of the branch takes a byte. The branch with most values for each byte counts.
        weights = [_weigh(each, named, around, depth + 1) for each in schema]
        return max(((least + 1, work + 1) for least, work in weights), key=lambda each: each[1] / each[0])
    if not isinstance(schema, Mapping):
        raise ValueError("a type is not valid")
    kind = schema.get("type")
    if kind in ("array", "map"):
        least, work = _weigh(schema.get("items" if kind == "array" else "values"), named, around, depth + 1)
        if kind == "map":
            least, work = least + 1, work + 1
        if work > AVRO_BYTE_WORK_MAX * least:
            raise ValueError("an array has values that take no bytes")
        return 1, 1
    if kind not in ("record", "error", "enum", "fixed"):
        return _weigh(kind, named, around, depth + 1)
    name = _short(str(schema.get("name")))
    weight = (0, 1)
    if kind == "enum":
        weight = (1, 1)
    elif kind == "fixed":
        weight = (int(schema.get("size", 0)), 1)
    else:
        for field in schema.get("fields", ()):
            least, work = _weigh(field["type"], named, (*around, name), depth + 1)
            weight = (weight[0] + least, weight[1] + work)
            if weight[1] > AVRO_WORK_MAX:
                raise ValueError(f"a record has more than {AVRO_WORK_MAX} values")
    # Types of several namespaces can have one short name. The worse weight counts for all of them.
    least, work = named.get(name, weight)
    named[name] = min(least, weight[0]), max(work, weight[1])
    return weight


def _short(name: str) -> str:
    return name.rpartition(".")[2]
