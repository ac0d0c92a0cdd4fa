"""Reads the `.proto` files of the door, for its messages (`block_node.grpc.messages`) and for reflection.

It reads the parts of the language that these files use: messages, enums and services, `oneof`, `repeated`, comments on
lines of their own. A type is named as it is declared. A message's name is unique in its file, an enum's in its message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from block_node.blocks.protobuf import bytes_field, number_field

SCALARS: Final = {"int32": 5, "uint64": 4, "bool": 8, "string": 9, "bytes": 12}
"""The types that are no message and no enum, with their numbers in "FieldDescriptorProto.Type"."""
MESSAGE_TYPE, ENUM_TYPE = 11, 14
OPTIONAL, REPEATED = 1, 3

_FIELD: Final = re.compile(r"(repeated )?(\w+) (\w+) = (\d+);")
_VALUE: Final = re.compile(r"(\w+) = (\d+);")
_METHOD: Final = re.compile(r"rpc (\w+) \((stream )?(\w+)\) returns \((stream )?(\w+)\);")


class WireField(NamedTuple):
    """A field of a message. kind: the name of its type. oneof: the name of its group; None: it has no group."""

    name: str
    number: int
    kind: str
    is_repeated: bool
    oneof: str | None


class WireMethod(NamedTuple):
    """A method of a service. path: its path in requests."""

    path: str
    request: str
    response: str
    client_streams: bool
    server_streams: bool


class Declaration(msgspec.Struct, eq=False):
    """A message, an enum or a service. path: its name within the file, such as `PublishStreamRequest.EndStream`.
    fields: by their numbers."""

    what: str
    path: str
    fields: dict[int, WireField] = {}
    values: list[tuple[str, int]] = []
    methods: list[WireMethod] = []
    inner: list[Declaration] = []

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


class ProtoFile:
    """One file. package: the package of its names. types: its messages by their names, and its enums by their paths."""

    def __init__(self, name: str, text: str) -> None:
        """Raises ValueError for a text with parts of the language that this class does not read."""
        self.name = name
        self.package = ""
        self.declared: list[Declaration] = []
        self.types: dict[str, Declaration] = {}
        self._read(text)

    def message(self, name: str) -> Declaration:
        found = self.types[name]
        assert found.what == "message", f"{name} is no message"
        return found

    def services(self) -> list[Declaration]:
        return [each for each in self.declared if each.what == "service"]

    def methods(self) -> Iterator[WireMethod]:
        for service in self.services():
            yield from service.methods

    def symbols(self) -> Iterator[str]:
        for each in [*self.types.values(), *self.services()]:
            yield f"{self.package}.{each.path}"
            yield from (method.path[1:].replace("/", ".") for method in each.methods)

    def descriptor(self) -> bytes:
        """Returns the serialized file descriptor (google/protobuf/descriptor.proto)."""
        parts = [_text(1, self.name), _text(2, self.package)]
        for number, what in ((4, "message"), (5, "enum"), (6, "service")):
            parts += [bytes_field(number, self._describe(each)) for each in self.declared if each.what == what]
        return b"".join((*parts, _text(12, "proto3")))

    def _read(self, text: str) -> None:
        open_: list[Declaration] = []
        oneof: str | None = None
        for line in map(str.strip, text.splitlines()):
            words = line.split()
            if not line or line.startswith("//") or words[0] == "syntax":
                continue
            inside = open_[-1] if open_ else None
            if words[0] == "package":
                self.package = words[1].rstrip(";")
            elif words[0] == "oneof":
                oneof = words[1]
            elif line == "}":
                # The end of a `oneof`, or of a declaration.
                if oneof is None:
                    open_.pop()
                oneof = None
            elif words[0] in ("message", "enum", "service") and words[-1] == "{":
                path = words[1] if inside is None else f"{inside.path}.{words[1]}"
                made = Declaration(words[0], path)
                (self.declared if inside is None else inside.inner).append(made)
                open_.append(made)
                if made.what != "service":
                    # Enums named `Code` are in several messages, and no message is read by their name.
                    self.types[path if made.what == "enum" else made.name] = made
            else:
                self._read_member(line, inside, oneof)

    def _read_member(self, line: str, inside: Declaration | None, oneof: str | None) -> None:
        what = "" if inside is None else inside.what
        match = {"message": _FIELD, "enum": _VALUE, "service": _METHOD}.get(what, _FIELD).fullmatch(line)
        if match is None or inside is None:
            raise ValueError(f"{self.name}: {line!r} is not understood")
        if what == "message":
            number = int(match[4])
            inside.fields[number] = WireField(match[3], number, match[2], match[1] is not None, oneof)
        elif what == "enum":
            inside.values.append((match[1], int(match[2])))
        else:
            path = f"/{self.package}.{inside.path}/{match[1]}"
            inside.methods.append(WireMethod(path, match[3], match[5], match[2] is not None, match[4] is not None))

    def _describe(self, each: Declaration) -> bytes:
        parts = [_text(1, each.name)]
        if each.what == "enum":
            parts += [bytes_field(2, _text(1, name) + number_field(2, number)) for name, number in each.values]
        elif each.what == "service":
            for method in each.methods:
                kinds = (f".{self.package}.{name}" for name in (method.request, method.response))
                flags = number_field(5, method.client_streams) + number_field(6, method.server_streams)
                name = method.path.rpartition("/")[2]
                parts.append(bytes_field(2, _text(1, name) + b"".join(map(_text, (2, 3), kinds)) + flags))
        else:
            groups = list(dict.fromkeys(field.oneof for field in each.fields.values() if field.oneof is not None))
            parts += [bytes_field(2, self._describe_field(each, field, groups)) for field in each.fields.values()]
            parts += [bytes_field(3 if inner.what == "message" else 4, self._describe(inner)) for inner in each.inner]
            parts += [bytes_field(8, _text(1, group)) for group in groups]
        return b"".join(parts)

    def _describe_field(self, owner: Declaration, field: WireField, groups: list[str]) -> bytes:
        parts = [_text(1, field.name), number_field(3, field.number)]
        parts.append(number_field(4, REPEATED if field.is_repeated else OPTIONAL))
        if field.kind in SCALARS:
            parts.append(number_field(5, SCALARS[field.kind]))
        else:
            kind = self.find_type(owner, field.kind)
            parts.append(number_field(5, ENUM_TYPE if kind.what == "enum" else MESSAGE_TYPE))
            parts.append(_text(6, f".{self.package}.{kind.path}"))
        if field.oneof is not None:
            # The index of the first group is 0. It is written too, because its presence puts the field into the group.
            parts.append(b"\x48" + bytes((groups.index(field.oneof),)))
        # The name of the field in JSON, which tools print. protoc writes it, too.
        first, *others = field.name.split("_")
        parts.append(_text(10, first + "".join(map(str.capitalize, others))))
        return b"".join(parts)

    def find_type(self, owner: Declaration, name: str) -> Declaration:
        return self.types.get(f"{owner.path}.{name}") or self.types[name]


def load_proto(name: str, package: str | None = None) -> ProtoFile:
    """Reads a file of this program. package: replaces the file's own package, for a service with two names."""
    text = (Path(__file__).parent / "proto" / name).read_text()
    if package is not None:
        text = re.sub(r"(?m)^package .*;$", f"package {package};", text)
        name = f"{package.replace('.', '/')}/{name}"
    return ProtoFile(name, text)


def _text(number: int, text: str) -> bytes:
    return bytes_field(number, text.encode())
