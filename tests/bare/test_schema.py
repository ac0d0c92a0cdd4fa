"""The schema language: older and current syntax, layout and comments."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

import bare
from bare import schema
from bare.schema import ast
from bare.schema.parser import tokens
from tests.bare.strategies import documents
from tests.support.examples import examples

# The older spelling, and what it means in the current one.
OLD_AND_NEW = [
    ("type A string", "type A str"),
    ("type A []u8", "type A list<u8>"),
    ("type A [2]string", "type A list<str>[2]"),
    ("type A [][003]u8", "type A list<list<u8>[3]>"),
    ("type A data<16>", "type A data[16]"),
    ("type A map[string][]u8", "type A map<str><list<u8>>"),
    ("type A (u8 | string = 7 | void)", "type A union { u8 | str = 7 | void }"),
    ("type A optional<(u8 | {b: u8})>", "type A optional<union { u8 | struct { b: u8 } }>"),
    ("type A { data: data type: string }", "type A struct { data: data type: str }"),
    ("enum A { B C = 5 D }", "type A enum { B = 0 C = 5 D = 6 }"),
    ("enum A uint { B }", "type A enum { B }"),
    ("struct A { b: u8 c: str }", "type A struct { b: u8 c: str }"),
    ("enum A { B = 2 C = 1 }", "type A enum { C = 1 B = 2 }"),
    ("type A { b: []B } type B { c: u8 }", "type B struct { c: u8 } type A struct { b: list<B> }"),
]


@pytest.mark.parametrize(("old", "new"), OLD_AND_NEW[:-2] + OLD_AND_NEW[-1:])
def test_the_older_syntax_means_what_the_current_one_says(old: str, new: str) -> None:
    document = schema.parse(new, "current")
    assert schema.parse(old, "legacy") == document
    assert schema.parse(old) == document
    assert schema.parse(new, "legacy") == document
    assert schema.parse(schema.format(schema.parse(old)), "current") == document
    with pytest.raises(bare.SchemaError):
        schema.parse(old, "current")


def test_tags_out_of_order_are_legacy_only() -> None:
    old, _ = OLD_AND_NEW[-2]
    document = schema.parse(old)
    assert [member.value for member in members_of(document, "A")] == [2, 1]
    with pytest.raises(bare.SchemaError, match="must ascend"):
        schema.parse(schema.format(document), "current")
    assert schema.parse(schema.format(document)) == document


def members_of(document: ast.Document, name: str) -> tuple[ast.EnumMember, ...]:
    type_ = document.definitions[name].type
    assert isinstance(type_, ast.Enum)
    return type_.members


LAID_OUT = """\
# Licence of this file.

# What came of it.
#
# OK is the usual case.
type Status enum {
    # First.
    OK  # fine
    ERROR = 5
    # Last.
}

type Id data[16]
type Ids list<Id>
type Request union { Status | str = 9 | void }

type Body union {
    | Status  # beside
    # above
    | struct {
        a: u8  # inner
        # closing
    } = 7
    | map<str><list<optional<uint>>[2]>  # last
}
# After all.
"""


def test_the_layout_keeps_comments_and_is_stable() -> None:
    assert schema.format(schema.parse(LAID_OUT)) == LAID_OUT.replace("}\n# After", "}\n\n# After")
    messy = "type A{# one\nb:# two\nlist<# three\nu8># four\n\n\n# five\nc:u8}# six\ntype B(#seven\n|u8|# eight\nstr)"
    once = schema.format(schema.parse(messy))
    assert schema.format(schema.parse(once)) == once
    for comment in ("# one", "# two", "# three", "# four", "# five", "# six", "#seven", "# eight"):
        assert once.count(comment) == 1


def test_a_long_union_has_one_member_per_line() -> None:
    names = [f"Member{index}" for index in range(9)]
    text = "".join(f"type {name} u8\n" for name in names) + f"type All union {{ {' | '.join(names)} }}"
    assert "union {\n    | Member0\n" in schema.format(schema.parse(text))


def test_line_ends_and_tabs_are_white_space() -> None:
    assert schema.parse("type\tA\r\n struct{a:u8\r\nb:u8}\r\n") == schema.parse("type A struct { a: u8 b: u8 }")
    assert schema.format(schema.parse("type A u8 # note\r\n")) == "type A u8  # note\n"


@settings(max_examples=examples(80), deadline=None)
@given(documents())
def test_any_schema_is_read_as_it_was_written(document: ast.Document) -> None:
    text = schema.format(document)
    assert schema.parse(text, "legacy") == document
    assert schema.format(schema.parse(text, "legacy")) == text


def test_tokens_carry_positions_and_comments() -> None:
    found = tokens("a # one\n\n# two\n\n  b", line=10)
    assert [(token.text, token.at, token.above, token.beside) for token in found] == [
        ("a", (10, 1), [], " one"),
        ("b", (14, 3), [" two", None], None),
        ("", (14, 4), [], None),
    ]


def test_trees_are_equal_if_they_mean_the_same() -> None:
    document = schema.parse("type A enum { B C = 1 } type D u8")
    assert document == schema.parse("# note\ntype D u8\n\ntype A enum { B = 0 C }")
    for other in ("type A enum { B C = 2 } type D u8", "type A enum { B } type D u8", "type A u8 type D u8"):
        assert document != schema.parse(other)
    assert ast.Optional(ast.Primitive("u8")) != ast.List(ast.Primitive("u8"))
    assert len({ast.Name("A", ast.SourcePosition(1, 1)), ast.Name("A"), ast.Name("B")}) == 2
