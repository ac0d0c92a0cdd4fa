"""Codecs and classes made from schema texts, and schemas found in Markdown."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
import pytest

import bare
from bare import schema

SCHEMA = """
type Kind enum { SMALL LARGE = 300 }
type Name str
type Person struct {
    name: Name
    kind: Kind
    tags: map<str><uint>
    home: optional<struct { street: str  kind: enum { FLAT } }>
    maybe: optional<optional<u8>>
    number: union { int | uint }
    other: union { Kind | str | void }
    type: u8
    class: u8
}
type People list<Person>
"""


def test_a_schema_gives_classes_and_codecs() -> None:
    loaded = schema.load(SCHEMA)
    assert list(loaded) == ["Kind", "Name", "Person", "People"]
    assert sorted(loaded.types) == ["Kind", "Person", "Person.home", "Person.home.kind"]
    kind: Any
    person: Any
    home: Any
    kind, person, home = (loaded.types[name] for name in ("Kind", "Person", "Person.home"))
    assert issubclass(kind, enum.IntEnum)
    assert issubclass(person, msgspec.Struct)
    flat = loaded.types["Person.home.kind"](0)
    value = person("a", kind(300), {"x": 5}, home("b", flat), bare.Some(None), bare.Tagged(1, 7), None, 1, 2)
    message = loaded.encode("Person", value)
    assert message.hex() == "0161" + "ac02" + "01017805" + "01016200" + "0100" + "0107" + "02" + "0102"
    assert loaded.decode("Person", message) == value
    assert loaded.decode("People", loaded.encode("People", [value])) == [value]
    assert loaded.decoder("Person") is loaded.decoder("Person")
    assert loaded.encoder("Name").encode("é") == b"\2\xc3\xa9"
    assert bare.encode(value.kind) == b"\xac\2"
    with pytest.raises(KeyError):
        loaded.encoder("Nobody")
    with pytest.raises(bare.EncodeError, match=r"wants a str, not int - at \$\.home\.street"):
        loaded.encode("Person", msgspec.structs.replace(value, home=home(5, flat)))


def test_types_that_contain_themselves_are_loaded() -> None:
    text = """
    type Tree { value: u8 below: []Tree names: map[string]Tree }
    type Maybe optional<Maybe>
    type Either (Either2 | string)
    type Either2 []Either
    type Loose (optional<Loose> | string)
    """
    loaded = schema.load(text)
    tree = loaded.types["Tree"]
    samples = [
        ("Tree", tree(1, [tree(2, [], {})], {"a": tree(3, [], {})}), "010102000001016103 0000"),
        ("Maybe", None, "00"),
        ("Maybe", bare.Some(bare.Some(None)), "010100"),
        ("Either", [["a", []], "b"], "0002 0002 010161 0000 010162"),
        ("Loose", bare.Some(bare.Some("a")), "00010001010161"),
        ("Loose", None, "0000"),
    ]
    for name, value, message in samples:
        assert loaded.encode(name, value) == bytes.fromhex(message)
        assert loaded.decode(name, bytes.fromhex(message)) == value


@pytest.mark.parametrize("reverse", [False, True])
def test_the_order_of_definitions_does_not_change_the_values(reverse: bool) -> None:
    lines = ["type A (B | string)", "type B []A"]
    loaded = schema.load("\n".join(reversed(lines) if reverse else lines))
    assert loaded.decode("A", b"\1\1a") == "a"
    assert loaded.decode("A", b"\0\1\1\1a") == ["a"]


def test_members_that_are_not_known_yet_are_taken_to_look_alike() -> None:
    """B is built before A, which then has a member that looks like one of B's."""
    loaded = schema.load("type A (string | []B) type B (A | string)")
    value = [bare.Tagged(0, "a"), bare.Tagged(1, "a"), bare.Tagged(0, [])]
    message = bytes.fromhex("0103 00000161 010161 000100")
    assert loaded.encode("A", value) == message
    assert loaded.decode("A", message) == value


def test_limits_reach_the_codecs() -> None:
    loaded = schema.load("type A list<u8>", limits=bare.Limits(list_items_max=1))
    with pytest.raises(bare.EncodeError, match="over the limit of 1"):
        loaded.encode("A", [1, 2])
    with pytest.raises(bare.DecodeError, match="over the limit of 1"):
        loaded.decode("A", b"\2\0\0")


def test_a_schema_can_use_what_another_defines() -> None:
    first = schema.load("type Key f32 type Name str type Item struct { name: Name }")
    second = schema.load("type Name u8 type Items list<Item> type Both struct { a: Name b: Item }", known=first)
    assert list(second) == ["Name", "Items", "Both"]
    assert "Item" in second
    item = first.types["Item"]("a")
    assert second.decode("Items", b"\1\1a") == [item]
    assert second.decode("Both", b"\5\1a") == second.types["Both"](5, item)
    assert second.decode("Item", b"\1a") == item
    with pytest.raises(bare.SchemaError, match="line 7, column 12: the key of a map"):
        schema.load("type A map<Key><u8>", known=second, line=7)
    third = schema.load("type Key u8 type Same Key", known=first)
    assert schema.load("type A map<Same><u8>", known=third).decode("A", b"\1\2\3") == {2: 3}
    with pytest.raises(bare.SchemaError, match="Gone is not defined"):
        schema.load("type A list<Gone>", known=second)


MARKDOWN = """\
# Title

```
a picture, no schema
```

```ts
type NotOurs = {}
```

   ~~~
   # comment
   type A { b: string }
   ~~~

````bare
type B []A
```
````
"""


def test_blocks_of_markdown_are_found_and_know_their_lines() -> None:
    found = schema.blocks(MARKDOWN)
    assert [block.line for block in found] == [12, 17]
    assert found[0].text == "   # comment\n   type A { b: string }\n"
    with pytest.raises(bare.SchemaError) as raised:
        schema.load_blocks(MARKDOWN)
    assert (raised.value.line, raised.value.column) == (18, 1)
    loaded = schema.load_blocks(MARKDOWN.replace("[]A\n```", "[]A"))
    assert [list(part) for part in loaded] == [["A"], ["B"]]
    assert loaded[1].decode("B", b"\1\1a") == [loaded[0].types["A"]("a")]
