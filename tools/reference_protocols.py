"""Makes `docs/protocols.md`: the messages of every protocol as BARE schemas, from the types that the node encodes."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bare.model import (  # noqa: E402
    PRIMITIVES,
    BareType,
    DataType,
    EnumType,
    FixedIntType,
    FloatType,
    ListType,
    MapType,
    NamedType,
    OptionalType,
    StructType,
    UnionType,
    VarintType,
    parts,
)
from bare.resolve import resolve  # noqa: E402
from ockam.protocol import Protocol  # noqa: E402

MODULES = (
    "ockam.protocol",
    "ockam.identity.authentication",
    "ockam.actors.forwarding_protocol",
    "stream_service.protocol",
    "stream_service.extensions",
    "stream_service.appending",
    "stream_service.mirroring",
    "stream_service.bulk",
    "index_service.protocol",
    "index_service.extensions",
    "index_service.fences",
    "block_node.protocol",
    "block_node.protocol_reading",
    "block_node.backfill.protocol",
    "stream_node.fleet.mirror.protocol",
    "stream_node.node.node_status",
    "stream_node.care.trouble_service",
    "stream_node.node.node_connections",
    "stream_node.hosting.status",
    "stream_node.fleet.cluster.protocol",
    "stream_node.forwarding.bidirectional",
)
"""The modules that define protocols. `tests/style/test_reference.py` looks for others."""


class Defined(NamedTuple):
    """Defined: a protocol, and where it is defined. place: module and name, as in "stream_service.bulk.BULK"."""

    place: str
    protocol: Protocol[Any, Any]

    @property
    def messages(self) -> dict[str, BareType]:
        """The types of the request and of the response, by the name of the message in the schema."""
        named = {}
        for role, annotation in (("Request", self.protocol.request), ("Response", self.protocol.response)):
            node = resolve(annotation)
            named[type_name(node) or role] = node
        return named


def all_protocols() -> list[Defined]:
    """Every protocol, in the order of MODULES and of their sources."""
    found: list[Defined] = []
    for name in MODULES:
        for each, value in vars(importlib.import_module(name)).items():
            if isinstance(value, Protocol) and value not in [defined.protocol for defined in found]:
                found.append(Defined(f"{name}.{each}", value))
    return found


def schema_of(messages: dict[str, BareType]) -> str:
    """The BARE schema of messages and of all types in them. Each type stands after the types in it."""
    definitions: dict[str, str] = {}

    def define(name: str, node: BareType) -> None:
        if name in definitions:
            return
        for part in _named_parts(node):
            define(type_name(part), part)
        definitions[name] = f"type {name} {_definition(node)}"

    for name, node in messages.items():
        define(name, node)
    return "\n\n".join(definitions.values()) + "\n"


def _named_parts(node: BareType) -> Iterator[BareType]:
    for part in parts(node):
        if type_name(part):
            yield part
        else:
            yield from _named_parts(part)


def type_name(node: BareType) -> str:
    """The name of a type in a schema: that of its Python class. Empty for a type without a class."""
    return node.cls.__name__.lstrip("_") if isinstance(node, StructType | EnumType) else ""


def is_empty(node: BareType) -> bool:
    """Whether a type is a struct without fields, which a schema calls void."""
    return isinstance(node, StructType) and not node.fields


def _definition(node: BareType) -> str:
    match node:
        case StructType() if is_empty(node):
            return "void"
        case StructType(fields=fields):
            lines = [f"    {name}: {_reference(item)}\n" for name, item in fields]
            return f"struct {{\n{''.join(lines)}}}"
        case EnumType(by_value=by_value):
            return "enum {\n" + "".join(f"    {member.name} = {value}\n" for value, member in by_value.items()) + "}"
        case _:
            return _reference(node)


def _reference(node: BareType) -> str:
    """A type as it stands within another one."""
    if name := type_name(node):
        return name
    match node:
        case OptionalType(item=item):
            return f"optional<{_reference(item)}>"
        case ListType(item=item, length=length):
            return f"list<{_reference(item)}>" + (f"[{length}]" if length is not None else "")
        case MapType(key=key, value=value):
            return f"map<{_reference(key)}><{_reference(value)}>"
        case UnionType(members=members):
            return "union { " + " | ".join(f"{_reference(member)} = {tag}" for tag, member in members) + " }"
        case DataType(length=int(length)):
            return f"data[{length}]"
        case VarintType(signed=signed):
            return "int" if signed else "uint"
        case FixedIntType(name=name) | FloatType(name=name):
            return name
        case NamedType():
            raise TypeError(f"a message refers to itself by {node.name}: no protocol of ours does so")
        case _:
            return next(name for name, primitive in PRIMITIVES.items() if type(primitive) is type(node))


def protocols_page() -> str:
    """The generated part of `docs/protocols.md`."""
    found = all_protocols()
    rows = [
        f"| [`{each.protocol.name}`](#{_anchor(each)}) | `{' / '.join(each.messages)}` | `{each.place}` |"
        for each in found
    ]
    parts = ["\n".join(["| Protocol | Messages | Defined as |", "|---|---|---|", *rows])]
    for each in found:
        module, _, name = each.place.rpartition(".")
        parts.append(f"## {_heading(each)}")
        parts.append(f"`{module.replace('.', '/')}.py::{name}`")
        parts.append(f"```bare\n{schema_of(each.messages)}```")
    return "\n\n".join(parts) + "\n"


def _heading(each: Defined) -> str:
    return f"{each.place.rpartition('.')[2]}: {each.protocol.name}"


def _anchor(each: Defined) -> str:
    return re.sub(r"[^\w\- ]", "", _heading(each).lower()).replace(" ", "-")
