"""Finds the schemas in a Markdown document. It does not read the schemas.

A schema is a fenced block with the language `bare`. A block without a language is a schema if it begins, after any
comments, with `type` or `enum`."""

from __future__ import annotations

import re
from typing import NamedTuple

_FENCE = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})[ \t]*(?P<info>[^`]*?)[ \t]*")
_SCHEMA_START = re.compile(r"(?:\s+|#[^\n]*\n)*(?:type|enum)\s+[A-Z]")


class SchemaBlock(NamedTuple):
    """A schema in a Markdown document. text: its text. line: the number of its first line, from 1."""

    text: str
    line: int


def blocks(markdown: str) -> list[SchemaBlock]:
    """Returns the schemas of a Markdown document, in the order of the document."""
    found: list[SchemaBlock] = []
    marks, info, start = "", "", 0
    lines = markdown.replace("\r\n", "\n").split("\n")
    for number, line in enumerate(lines, 1):
        fence = _FENCE.fullmatch(line)
        if not marks and fence:
            marks, info, start = fence["marks"], fence["info"], number + 1
        elif marks and fence and fence["marks"].startswith(marks) and not fence["info"]:
            text = "".join(inner + "\n" for inner in lines[start - 1 : number - 1])
            if info == "bare" or (not info and _SCHEMA_START.match(text)):
                found.append(SchemaBlock(text, start))
            marks = ""
    return found
