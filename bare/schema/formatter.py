"""Formats schemas: writes a schema, with its comments, in the current syntax and a fixed layout.

A definition is written after the definitions that it uses, as the current drafts require. If types contain each other,
the definitions keep their order, and the text can only be read as legacy."""

from __future__ import annotations

from bare.schema import ast
from bare.schema.ast import Comments, Type, in_order, is_in_order

INDENT = "    "
# A union is written on one line if its text has at most this many characters.
UNION_CHARACTERS_MAX = 80


def format_document(document: ast.Document) -> str:
    """Returns the formatted text of a schema, which ends with a line break."""
    chunks: list[str] = []
    before: ast.Definition | None = None
    ordered = in_order(document.definitions)
    for definition in ordered if is_in_order(ordered) else document.definitions.values():
        lines = _item(f"type {definition.name} {_type(definition.type, '')}", definition.comments, "")
        if before is not None and not (_is_short(before) and _is_short(definition)):
            chunks.append("")
        chunks += lines
        before = definition
    if document.closing:
        chunks += ["", *_comment_lines(document.closing, "")]
    return "\n".join(chunks) + "\n"


def _is_short(definition: ast.Definition) -> bool:
    """Whether a definition is a single line. There is no empty line between two such definitions."""
    return not definition.comments.above and "\n" not in _type(definition.type, "")


def _comment_lines(comments: tuple[str | None, ...], indent: str) -> list[str]:
    return ["" if comment is None else f"{indent}#{comment}" for comment in comments]


def _item(text: str, comments: Comments, indent: str) -> list[str]:
    beside = "" if comments.beside is None else f"  #{comments.beside}"
    return [*_comment_lines(comments.above, indent), f"{indent}{text}{beside}"]


def _type(type_: Type, indent: str) -> str:
    match type_:
        case ast.Primitive(name=name) | ast.Name(name=name):
            return name
        case ast.FixedData(length=length):
            return f"data[{length}]"
        case ast.Optional(item=item):
            return f"optional<{_type(item, indent)}>"
        case ast.List(item=item, length=length):
            return f"list<{_type(item, indent)}>" + ("" if length is None else f"[{length}]")
        case ast.Map(key=key, value=value):
            return f"map<{_type(key, indent)}><{_type(value, indent)}>"
        case ast.Enum():
            return _enum(type_, indent)
        case ast.UnionNode():
            return _union(type_, indent)
        case ast.Struct():
            return _struct(type_, indent)


def _block(keyword: str, lines: list[str], closing: tuple[str | None, ...], indent: str) -> str:
    lines = lines + _comment_lines(closing, indent + INDENT)
    return "\n".join([keyword + " {", *lines, indent + "}"])


def _enum(enum: ast.Enum, indent: str) -> str:
    lines: list[str] = []
    expected = 0
    for member in enum.members:
        number = f" = {member.value}" if member.stated or member.value != expected else ""
        lines += _item(member.name + number, member.comments, indent + INDENT)
        expected = member.value + 1
    return _block("enum", lines, enum.closing, indent)


def _union(union: ast.UnionNode, indent: str) -> str:
    texts: list[tuple[str, ast.UnionMember]] = []
    expected = 0
    for member in union.members:
        number = f" = {member.tag}" if member.stated or member.tag != expected else ""
        texts.append((_type(member.type, indent + INDENT) + number, member))
        expected = member.tag + 1
    short = f"union {{ {' | '.join(text for text, _ in texts)} }}"
    commented = union.closing or any(member.comments != Comments() for member in union.members)
    if not commented and len(short) <= UNION_CHARACTERS_MAX and "\n" not in short:
        return short
    lines = [line for text, member in texts for line in _item("| " + text, member.comments, indent + INDENT)]
    return _block("union", lines, union.closing, indent)


def _struct(struct: ast.Struct, indent: str) -> str:
    lines: list[str] = []
    for item in struct.fields:
        text = f"{item.name}: {_type(item.type, indent + INDENT)}"
        lines += _item(text, item.comments, indent + INDENT)
    return _block("struct", lines, struct.closing, indent)
