"""Splits a schema text into tokens (words, numbers and signs), and attaches the comments to the tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bare.schema.ast import SourcePosition

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
