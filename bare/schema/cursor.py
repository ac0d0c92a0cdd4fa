"""Splits a schema text into tokens (words, numbers and signs), and attaches the comments to the tokens. Cursor: walks
over the tokens, and assigns each comment to an item. This module does not depend on the grammar."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bare.errors import SchemaError
from bare.schema.ast import Comments, SourcePosition

# A u64 has 20 digits at most, so any longer number is too large.
_DIGITS_MAX = 20

# Words have only ASCII letters, digits and `_` (section 3 of the draft). Any other character is a sign; the parser
# refuses the signs that the grammar does not have.
_TOKEN = re.compile(r"(?P<space>[ \t\r\n]+)|#(?P<comment>[^\n]*)|(?P<word>[A-Za-z0-9_]+)|(?P<sign>.)", re.DOTALL)


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


class Cursor:
    """A position between two tokens of a schema. `_loose` has the comments that are not assigned to an item yet."""

    def __init__(self, found: list[Lexeme]) -> None:
        self._tokens = found
        self._index = 0
        self._loose: list[str | None] = []

    # Methods that read tokens.

    @property
    def next(self) -> Lexeme:
        return self._tokens[self._index]

    @property
    def after_next(self) -> Lexeme:
        return self._tokens[min(self._index + 1, len(self._tokens) - 1)]

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

    def give_beside(self) -> None:
        """Moves the comment of the next token to the last read token, if both tokens are on the same line."""
        before = self._tokens[self._index - 1]
        if before.at.line == self.next.at.line:
            before.beside, self.next.beside = self.next.beside, None
