"""Text of peers made safe for a terminal. The command line and the logs use it before they print."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text as one line that a terminal only shows, and never obeys.

    Names and reasons come from peers. A line end in one would forge a row of a table; an escape code would rename the
    window or hide text. So every character that is not printable, direction marks too, is written as Python writes it.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def printable_bytes(data: bytes) -> bytes:
    """The same for bytes. Bytes that are no UTF-8 are written as Python writes them."""
    return printable(data.decode(errors="backslashreplace")).encode()
