"""Parser: reads schema texts in the current syntax (since draft -03) and in the older syntax. It checks only syntax.

    schema     = 1*definition
    definition = "type" name any
    any        = primitive / name / "data" ["[" n "]"]
               / "optional<" any ">" / "list<" any ">" ["[" n "]"] / "map<" any "><" any ">"
               / "enum {" 1*(NAME ["=" n]) "}"
               / "union {" ["|"] any ["=" n] *("|" any ["=" n]) ["|"] "}"
               / "struct {" 1*(name ":" any) "}"

The older syntax has these rules in addition:

    definition = "enum" name ["uint"] "{" 1*(NAME ["=" n]) "}"
               / "struct" name "{" 1*(name ":" any) "}"
    any        = "string" / "data<" n ">" / "[]" any / "[" n "]" any / "map[" any "]" any
               / "(" any ["=" n] *("|" any ["=" n]) ")" / "{" 1*(name ":" any) "}"

`bare.schema.dialect` checks the meaning of a text."""

from __future__ import annotations

import re

from bare.model import LENGTH_MAX, PRIMITIVES, UINT_MAX
from bare.schema import ast
from bare.schema.ast import SourcePosition, Type
from bare.schema.cursor import Cursor, Lexeme, tokens

# Our own limit: types that are nested more deeply than this are refused. Otherwise, this parser or a codec could
# exhaust the stack.
NEST_MAX = 64

_TYPE_NAME = re.compile(r"[A-Z][A-Za-z0-9]*")
_FIELD_NAME = re.compile(r"[a-z][A-Za-z0-9_]*")
_MEMBER_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


def parse_text(text: str, older: bool, line: int = 1) -> ast.Document:
    """Returns the definitions of a schema text. Raises SchemaError.

    older: accept the older syntax, too. line: the number of the text's first line, for errors."""
    return _Parser(tokens(text, line), older).document()


class _Parser(Cursor):
    def __init__(self, found: list[Lexeme], older: bool) -> None:
        super().__init__(found)
        self._older = older
        self._nest = 0

    def _only_older(self, instead: str, at: SourcePosition) -> None:
        if not self._older:
            raise self.error(f"this is the older syntax: write `{instead}`, or read it as legacy", at)

    def document(self) -> ast.Document:
        definitions: dict[str, ast.Definition] = {}
        while self.next.text:
            definition = self._definition()
            if definition.name in definitions:
                raise self.error(f"{definition.name} is defined twice: names are unique", definition.at)
            definitions[definition.name] = definition
        if not definitions:
            raise self.error("a schema must define at least one type")
        return ast.Document(definitions, self.closing())

    def _definition(self) -> ast.Definition:
        above = self.comments_above()
        keyword = self.next
        if keyword.text not in ("type", "enum", "struct"):
            raise self.error(f"`type` is expected at the start of a definition, not {self.found()}")
        self.advance()
        at = self.next.at
        if not _TYPE_NAME.fullmatch(self.next.text):
            raise self.error(f"a type name is expected, not {self.found()}: A-Z first, then letters and digits")
        name = self.advance().text
        # A frequent mistake gets an error of its own.
        if self.next.text in ("=", ":"):
            raise self.error(f"nothing stands between a name and its type: remove {self.found()}")
        if keyword.text == "enum":
            self._only_older(f"type {name} enum {{ ... }}", keyword.at)
            type_: Type = self._old_enum(keyword.at)
        elif keyword.text == "struct":
            self._only_older(f"type {name} struct {{ ... }}", keyword.at)
            type_ = self._struct(keyword.at)
        else:
            type_ = self._type()
        return ast.Definition(name, type_, self.comments(above), at)

    def _old_enum(self, at: SourcePosition) -> ast.Enum:
        if self.next.text in PRIMITIVES and self.next.text != "uint":
            raise self.error(
                "an enum of a fixed width has no equal in the current drafts: use a plain enum, or "
                f"{self.next.text} with the names in a comment"
            )
        self.take("uint")
        return self._enum(at)

    def _type(self) -> Type:
        self._nest += 1
        if self._nest > NEST_MAX:
            raise self.error(f"types are nested more than {NEST_MAX} deep: give the inner ones names")
        found = self._type_inside()
        self._nest -= 1
        return found

    def _type_inside(self) -> Type:
        text, at = self.next.text, self.next.at
        if _TYPE_NAME.fullmatch(text):
            self.advance()
            return ast.Name(text, at)
        if text not in _STARTS and (text not in PRIMITIVES or text == "data"):
            raise self.error(f"a type is expected, not {self.found()}{self._hint(text)}")
        if text in PRIMITIVES and text != "data":
            self.advance()
            return ast.Primitive(text, at)
        return self._compound(text, at)

    def _hint(self, text: str) -> str:
        known = {word.lower() for word in (*PRIMITIVES, *_STARTS)}
        return f": write it in lower case, `{text.lower()}`" if text and text.lower() in known else ""

    def _compound(self, text: str, at: SourcePosition) -> Type:
        match text:
            case "{":
                self._only_older("struct { ... }", at)
                return self._struct(at)
            case "(":
                self._only_older("union { ... }", at)
                return self._union(at, ")")
            case "[":
                self._only_older("list<T>` or `list<T>[n]", at)
                return self._old_list(at)
        self.advance()
        match text:
            case "string":
                self._only_older("str", at)
                return ast.Primitive("str", at)
            case "data":
                return self._data(at)
            case "optional":
                return ast.Optional(self._enclosed("an optional"), at)
            case "list":
                item = self._enclosed("a list")
                return ast.List(item, self._length() if self.next.text == "[" else None, at)
            case "map":
                return self._map(at)
            case "enum":
                return self._enum(at)
            case "union":
                return self._union(at, "}")
            case _:
                return self._struct(at)

    def _enclosed(self, what: str) -> Type:
        self.expect("<", f"before the type in {what}")
        inner = self._type()
        hint = ", each type in its own `<>`: `map<K><V>`" if self.next.text == "," else ""
        self.expect(">", f"after the type in {what}{hint}")
        return inner

    def _length(self) -> int:
        self.expect("[", "before a length")
        length = self.number(1, LENGTH_MAX, "a fixed length")
        self.expect("]", "after a length")
        return length

    def _data(self, at: SourcePosition) -> Type:
        if self.next.text == "[":
            return ast.FixedData(self._length(), at)
        if self.next.text != "<":
            return ast.Primitive("data", at)
        self._only_older("data[n]", self.advance().at)
        length = self.number(1, LENGTH_MAX, "a fixed length")
        self.expect(">", "after a length")
        return ast.FixedData(length, at)

    def _old_list(self, at: SourcePosition) -> Type:
        length = None if self.after_next.text == "]" else self._length()
        if length is None:
            self.advance()
            self.advance()
        return ast.List(self._type(), length, at)

    def _map(self, at: SourcePosition) -> Type:
        if self.next.text != "[":
            return ast.Map(self._enclosed("a map"), self._enclosed("a map"), at)
        self._only_older("map<K><V>", self.advance().at)
        key = self._type()
        self.expect("]", "after the key of a map")
        return ast.Map(key, self._type(), at)

    def _refuse_separator(self) -> None:
        if self.next.text in (",", ";"):
            raise self.error(f"members are separated by white space only: remove {self.found()}")

    def _enum(self, at: SourcePosition) -> ast.Enum:
        self.expect("{", "before the members of an enum")
        members: list[ast.EnumMember] = []
        while self.next.text not in ("}", ""):
            above, member_at = self.comments_above(), self.next.at
            if not _MEMBER_NAME.fullmatch(self.next.text):
                raise self.error(f"an enum member is expected, not {self.found()}: upper case, digits, `_`")
            name = self.advance().text
            stated = self.take("=")
            value = members[-1].value + 1 if members else 0
            if stated:
                value = self.number(0, UINT_MAX, "the value of an enum member")
            self._refuse_separator()
            members.append(ast.EnumMember(name, value, stated, self.comments(above), member_at))
        closing = self.closing()
        self.expect("}", "after the members of an enum")
        return ast.Enum(tuple(members), closing, at)

    def _union(self, at: SourcePosition, end: str) -> ast.UnionNode:
        self.expect("{" if end == "}" else "(", "before the members of a union")
        members: list[ast.UnionMember] = []
        self.take("|")
        while self.next.text not in (end, ""):
            above, member_at = self.comments_above(), self.next.at
            type_ = self._type()
            stated = self.take("=")
            tag = members[-1].tag + 1 if members else 0
            if stated:
                tag = self.number(0, UINT_MAX, "the tag of a union member")
            # A comment after the sign `|` belongs to the member before the sign.
            if self.next.text == "|":
                self.give_beside()
            members.append(ast.UnionMember(type_, tag, stated, self.comments(above), member_at))
            if not self.take("|"):
                break
        if self.next.text in (",", ";"):
            raise self.error(f"members of a union are separated by `|`, not by {self.found()}")
        closing = self.closing()
        self.expect(end, "after the members of a union (which are separated by `|`)")
        return ast.UnionNode(tuple(members), closing, at)

    def _struct(self, at: SourcePosition) -> ast.Struct:
        self.expect("{", "before the members of a struct")
        fields: list[ast.Field] = []
        while self.next.text not in ("}", ""):
            above, field_at = self.comments_above(), self.next.at
            if not _FIELD_NAME.fullmatch(self.next.text):
                raise self.error(f"a field name is expected, not {self.found()}: a-z first, then letters, digits, `_`")
            name = self.advance().text
            self.expect(":", f"between the field {name} and its type")
            type_ = self._type()
            self._refuse_separator()
            fields.append(ast.Field(name, type_, self.comments(above), field_at))
        closing = self.closing()
        self.expect("}", "after the fields of a struct")
        return ast.Struct(tuple(fields), closing, at)


# The words and signs with which a type can start, in addition to type names and primitive types.
_STARTS = frozenset(("data", "optional", "list", "map", "enum", "union", "struct", "string", "{", "(", "["))
