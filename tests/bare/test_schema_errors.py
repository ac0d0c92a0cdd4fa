"""Schema texts that are wrong, and the corpus of the bare-ts compiler, right and wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bare
from bare import schema
from bare.schema import ast
from tests.bare.samples import vectors
from tests.support.examples import examples

CORPUS = vectors("schema_corpus.json")


def place(text: str, offset: int) -> tuple[int, int]:
    """Line and column, from 1, of an offset in characters."""
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def read_as_configured(case: dict[str, Any]) -> ast.Document:
    config = case["config"]
    dialect: schema.Dialect = "legacy" if config.get("legacy") else "current"
    return schema.parse(case["schema"], dialect, pedantic=config.get("pedantic", False))


def cases(kind: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in CORPUS if case["kind"] == kind]


@pytest.mark.parametrize("case", cases("valid-bare-schema"))
def test_valid_schemas_of_the_corpus_are_read_written_and_loaded(case: dict[str, Any]) -> None:
    document = read_as_configured(case)
    text = schema.format(document)
    assert schema.parse(text, "legacy" if case["config"].get("legacy") else "current") == document
    assert schema.format(schema.parse(text)) == text
    loaded = schema.load(case["schema"])
    assert list(loaded) == list(document.definitions)
    for name in loaded:
        loaded.encoder(name)
        loaded.decoder(name)


# Where we name another place than bare-ts: the keyword instead of the brace after it; the member instead of
# its end; the member instead of its tag.
ELSEWHERE = {"enum-legacy": (2, 1), "union-pedantic-partial-tag": (1, 35), "union-tag-unsorted": (1, 35)}


@pytest.mark.parametrize("case", cases("invalid-bare-schema"))
def test_invalid_schemas_of_the_corpus_are_refused_where_bare_ts_does(case: dict[str, Any]) -> None:
    with pytest.raises(bare.SchemaError) as raised:
        read_as_configured(case)
    expected = place(case["schema"], case["expected_error"]["offset"])
    assert (raised.value.line, raised.value.column) == ELSEWHERE.get(case["name"], expected)


BAD_VALUE = "the value of an enum member must be from 0 to 18446744073709551615"
BAD_VOID = "void may only be a member of a union, or a whole message"
BAD_KEY = "the key of a map must be an enum or a primitive, not f32, f64 or void"

# Text, dialect, line and column, and what the error says.
REFUSED: list[tuple[str, schema.Dialect, tuple[int, int], str]] = [
    ("# nothing", "auto", (1, 10), "a schema must define at least one type"),
    ("type a u8", "auto", (1, 6), "a type name is expected, not `a`: A-Z first, then letters and digits"),
    ("type A_B u8", "auto", (1, 6), "a type name is expected, not `A_B`: A-Z first, then letters and digits"),
    ("type A U8", "auto", (1, 8), "U8 is not defined"),
    ("type A UINT", "auto", (1, 8), "UINT is not defined"),
    ("type A List<u8>", "current", (1, 12), "`type` is expected at the start of a definition, not `<`"),
    ("type A u9", "auto", (1, 8), "a type is expected, not `u9`"),
    ("type A optionaL<u8>", "auto", (1, 8), "a type is expected, not `optionaL`: write it in lower case, `optional`"),
    ("type A é", "auto", (1, 8), "a type is expected, not `é`"),
    ("type A u8 type A u8", "auto", (1, 16), "A is defined twice: names are unique"),
    ("type A: u8", "auto", (1, 7), "nothing stands between a name and its type: remove `:`"),
    ("type A B", "auto", (1, 8), "B is not defined"),
    ("type A B\ntype B u8", "current", (1, 8), "B is used before its definition: move that up, or read it as legacy"),
    ("type A list<A>", "current", (1, 13), "A contains itself, which only older drafts allow (legacy)"),
    ("type A A", "auto", (1, 8), "A contains itself without end: make it optional, a list or a map here"),
    (
        "type A struct {\n  b: []A\n  c: A\n}",
        "auto",
        (3, 6),
        "A contains itself without end: make it optional, a list or a map here",
    ),
    ("type A enum {}", "auto", (1, 8), "an enum must have at least one member"),
    ("type A struct {}", "auto", (1, 8), "a struct must have at least one field"),
    ("type A {}", "auto", (1, 8), "a struct must have at least one field"),
    ("type A union {|}", "auto", (1, 8), "a union must have at least one member"),
    ("type A ()", "auto", (1, 8), "a union must have at least one member"),
    ("type A enum { a }", "auto", (1, 15), "an enum member is expected, not `a`: upper case, digits, `_`"),
    (
        "type A enum { B = -1 }",
        "auto",
        (1, 19),
        "the value of an enum member must be an unsigned decimal number, not `-`",
    ),
    ("type A enum { B = 18446744073709551616 }", "auto", (1, 19), BAD_VALUE),
    ("type A enum { B = " + "9" * 5000 + " }", "auto", (1, 19), BAD_VALUE),
    (
        "type A enum { B = 18446744073709551615 C }",
        "auto",
        (1, 40),
        "value 18446744073709551616, which follows from the one before, has more than 64 bits",
    ),
    ("type A enum { B = 1 C = 1 }", "auto", (1, 21), "value 1 is used twice"),
    ("type A enum { B = 1 C = 0 D }", "legacy", (1, 27), "value 1 is used twice"),
    ("type A enum { B, C }", "auto", (1, 16), "members are separated by white space only: remove `,`"),
    ("type A union { u8 | str = 0 }", "auto", (1, 21), "tag 0 is used twice"),
    ("type A union { u8 || str }", "auto", (1, 20), "a type is expected, not `|`"),
    ("type A struct { b u8 }", "auto", (1, 19), "`:` is expected between the field b and its type, not `u8`"),
    ("type A struct { b: u8 b: u8 }", "auto", (1, 23), "b is a field twice: names are unique"),
    (
        "type A struct { _b: u8 }",
        "auto",
        (1, 17),
        "a field name is expected, not `_b`: a-z first, then letters, digits, `_`",
    ),
    ("type A struct { b: u8, }", "auto", (1, 22), "members are separated by white space only: remove `,`"),
    ("type A struct { b: void }", "auto", (1, 20), BAD_VOID),
    ("type V void type A optional<V>", "auto", (1, 29), BAD_VOID),
    ("type A list<void>[2]", "auto", (1, 13), BAD_VOID),
    ("type A map<str><void>", "auto", (1, 17), BAD_VOID),
    ("type A map<void><str>", "auto", (1, 12), BAD_KEY),
    ("type A map<list<u8>><str>", "auto", (1, 12), BAD_KEY),
    (
        "type A list<u8>[",
        "auto",
        (1, 17),
        "a fixed length must be an unsigned decimal number, not the end of the schema",
    ),
    ("type A list<u8>[2", "auto", (1, 18), "`]` is expected after a length, not the end of the schema"),
    ("type A data[٣]", "auto", (1, 13), "a fixed length must be an unsigned decimal number, not `٣`"),
    (
        "type A []u8",
        "current",
        (1, 8),
        "this is the older syntax: write `list<T>` or `list<T>[n]`, or read it as legacy",
    ),
    ("type A (u8 | str)", "current", (1, 8), "this is the older syntax: write `union { ... }`, or read it as legacy"),
    ("type A { b: u8 }", "current", (1, 8), "this is the older syntax: write `struct { ... }`, or read it as legacy"),
    ("type A string", "current", (1, 8), "this is the older syntax: write `str`, or read it as legacy"),
    (
        "enum A u8 { B }",
        "auto",
        (1, 8),
        (
            "an enum of a fixed width has no equal in the current drafts: use a plain enum, or u8 "
            "with the names in a comment"
        ),
    ),
    ("type A map[str u8", "auto", (1, 16), "`]` is expected after the key of a map, not `u8`"),
    ("type A data<0>", "legacy", (1, 13), "a fixed length must be from 1 to 4294967295"),
    (
        "type A " + "optional<" * 65 + "u8" + ">" * 65,
        "auto",
        (1, 584),
        "types are nested more than 64 deep: give the inner ones names",
    ),
    ("\ufefftype A u8", "auto", (1, 1), "`type` is expected at the start of a definition, not `\ufeff`"),
]


@pytest.mark.parametrize(("text", "dialect", "at", "what"), REFUSED)
def test_schema_errors_say_what_and_where(text: str, dialect: schema.Dialect, at: tuple[int, int], what: str) -> None:
    with pytest.raises(bare.SchemaError) as raised:
        schema.parse(text, dialect)
    error = raised.value
    assert ((error.line, error.column), error.what) == (at, what)
    assert str(error) == f"line {at[0]}, column {at[1]}: {what}"


def test_a_wrong_dialect_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="auto, current or legacy"):
        schema.parse("type A u8", "old")  # type: ignore[arg-type]


WORDS = ["type", "enum", "A", "B", "x", "u8", "data", "string", "optional", "list", "map", "union", "struct", "void"]
SIGNS = ["{", "}", "<", ">", "[", "]", "(", ")", "|", "=", ":", ",", "7", "0", "# c\n", "\n", "é"]


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.sampled_from(WORDS + SIGNS), max_size=25))
def test_any_text_is_a_schema_or_a_schema_error_with_a_place_in_it(parts: list[str]) -> None:
    text = "type A struct { " + " ".join(parts)
    for dialect in ("auto", "current", "legacy"):
        try:
            document = schema.parse(text, dialect)
        except bare.SchemaError as error:
            found = error
        else:
            assert schema.parse(schema.format(document)) == document
            continue
        lines = text.split("\n")
        assert 1 <= found.line <= len(lines)
        assert 1 <= found.column <= len(lines[found.line - 1]) + 1
