"""Parser: reads schema texts in the current syntax (since draft -03) and in the older syntax. It checks only syntax,
and assigns each comment to an item.

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
from dataclasses import dataclass

from bare.errors import SchemaError
from bare.model import LENGTH_MAX, PRIMITIVES, UINT_MAX
from bare.schema import ast
from bare.schema.ast import Comments, SourcePosition, Type

# Our own limit: types that are nested more deeply than this are refused. Otherwise, this parser or a codec could
# exhaust the stack.
NEST_MAX = 64

# A u64 has 20 digits at most, so any longer number is too large.
_DIGITS_MAX = 20

# Words have only ASCII letters, digits and `_` (section 3 of the draft). Any other character is a sign; the parser
# refuses the signs that the grammar does not have.
_TOKEN = re.compile(r"(?P<space>[ \t\r\n]+)|#(?P<comment>[^\n]*)|(?P<word>[A-Za-z0-9_]+)|(?P<sign>.)", re.DOTALL)

_TYPE_NAME = re.compile(r"[A-Z][A-Za-z0-9]*")
_FIELD_NAME = re.compile(r"[a-z][A-Za-z0-9_]*")
_MEMBER_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


def parse_text(text: str, older: bool, line: int = 1) -> ast.Document:
    """Returns the definitions of a schema text. Raises SchemaError.

    older: accept the older syntax, too. line: the number of the text's first line, for errors."""
    return _Parser(tokens(text, line), older).document()


@dataclass(slots=True)
class Lexeme:
    """A word, a sign, or the end of the text (an empty token).

    beside: the comment after the token on the same line, or None.
    above: the other comments between the previous token and this token; None: an empty line after a comment."""

    text: str
    at: SourcePosition
    above: list[str | None]
    beside: str | None = None


def tokens(text: str, line: int = 1) -> list[Lexeme]:
    """Returns the tokens of a text. The last token is the end token. line: the number of the text's first line."""
    found: list[Lexeme] = []
    above: list[str | None] = []
    line_start = 0
    comment_line = 0
    for match in _TOKEN.finditer(text):
        at = SourcePosition(line, match.start() - line_start + 1)
        if match["space"]:
            line += match[0].count("\n")
            if "\n" in match[0]:
                line_start = match.start() + match[0].rindex("\n") + 1
        elif match["comment"] is not None:
            # A comment after a token on the same line belongs to that token, and any other comment to the next token.
            comment = match["comment"].rstrip()
            if found and not above and found[-1].beside is None and found[-1].at.line == line:
                found[-1].beside = comment
            else:
                if above and line - comment_line > 1:
                    above.append(None)
                above.append(comment)
                comment_line = line
        else:
            if above and line - comment_line > 1:
                above.append(None)
            found.append(Lexeme(match[0], at, above))
            above = []
    found.append(Lexeme("", SourcePosition(line, len(text) - line_start + 1), above))
    return found


class _Parser:
    """A parser of one text. `_loose` has the comments that are not assigned to an item yet."""

    def __init__(self, found: list[Lexeme], older: bool) -> None:
        self._tokens = found
        self._older = older
        self._index = 0
        self._nest = 0
        self._loose: list[str | None] = []

    # Methods for definitions and types.

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
            if self.next.text in PRIMITIVES and self.next.text != "uint":
                raise self.error(
                    "an enum of a fixed width has no equal in the current drafts: use a plain enum, or "
                    f"{self.next.text} with the names in a comment"
                )
            self.take("uint")
            type_: Type = self._enum(keyword.at)
        elif keyword.text == "struct":
            self._only_older(f"type {name} struct {{ ... }}", keyword.at)
            type_ = self._struct(keyword.at)
        else:
            type_ = self._type()
        return ast.Definition(name, type_, self.comments(above), at)

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
            known = {word.lower() for word in (*PRIMITIVES, *_STARTS)}
            hint = f": write it in lower case, `{text.lower()}`" if text and text.lower() in known else ""
            raise self.error(f"a type is expected, not {self.found()}{hint}")
        if text in PRIMITIVES and text != "data":
            self.advance()
            return ast.Primitive(text, at)
        return self._compound(text, at)

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
                self.advance()
                length = None if self.next.text == "]" else self.number(1, LENGTH_MAX, "a fixed length")
                self.expect("]", "after a length")
                return ast.List(self._type(), length, at)
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
            # A comment after the sign `|` belongs to the member before the sign, if both are on one line.
            before = self._tokens[self._index - 1]
            if self.next.text == "|" and before.at.line == self.next.at.line:
                before.beside, self.next.beside = self.next.beside, None
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

    # Methods that read tokens.

    @property
    def next(self) -> Lexeme:
        return self._tokens[self._index]

    def advance(self) -> Lexeme:
        token = self.next
        self._collect()
        self._index += 1
        return token

    def error(self, what: str, at: SourcePosition | None = None) -> SchemaError:
        return SchemaError(what, *(at or self.next.at))

    def found(self) -> str:
        return f"`{self.next.text}`" if self.next.text else "the end of the schema"

    def expect(self, text: str, why: str) -> Lexeme:
        if self.next.text != text:
            raise self.error(f"`{text}` is expected {why}, not {self.found()}")
        return self.advance()

    def take(self, text: str) -> bool:
        if self.next.text == text:
            self.advance()
            return True
        return False

    def number(self, low: int, high: int, what: str) -> int:
        text, at = self.next.text, self.next.at
        if not text.isdigit() or not text.isascii():
            raise self.error(f"{what} must be an unsigned decimal number, not {self.found()}")
        digits = text.lstrip("0") or "0"
        if len(digits) > _DIGITS_MAX or not low <= int(digits) <= high:
            raise self.error(f"{what} must be from {low} to {high}", at)
        self.advance()
        return int(digits)

    # Methods for comments.

    def _collect(self) -> None:
        """Moves the comments before the next token into `_loose`, except comments that already belong to an item."""
        if self._index:
            before = self._tokens[self._index - 1]
            if before.beside is not None:
                self._loose.append(before.beside)
                before.beside = None
        self._loose += self.next.above
        self.next.above = []

    def comments_above(self) -> tuple[str | None, ...]:
        self._collect()
        above, self._loose = tuple(self._loose), []
        return above

    def comments(self, above: tuple[str | None, ...]) -> Comments:
        """Returns the comments of the item that ends at the last read token. above: the comments before the item."""
        last = self._tokens[self._index - 1]
        beside, last.beside = last.beside, None
        inside, self._loose = tuple(self._loose), []
        return Comments(above + inside, beside)

    def closing(self) -> tuple[str | None, ...]:
        comments = self.comments_above()
        return comments[:-1] if comments and comments[-1] is None else comments


# The words and signs with which a type can start, in addition to type names and primitive types.
_STARTS = frozenset(("data", "optional", "list", "map", "enum", "union", "struct", "string", "{", "(", "["))
